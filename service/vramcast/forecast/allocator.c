/* PyTorch's caching allocator, replaying a tape: the compiled twin of allocator.py, which says why each rule is so. The
 * two give the same figures, event by event; tests compare them.
 *
 * All sizes are in grains of 512 B. A pool holds what one stream allocates up to 1 MiB, or above it. The sizes that a
 * tape asks for are known beforehand, and few. So a pool has a bin for each, with the free blocks that have room for
 * this size and not for the next one: the best fit is the first block of the first bin that is not empty. A bin is a
 * list in the order of size and address. Four of five blocks belong at its front, and most others beside the last block
 * of the same size.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MIB 2048 /* grains */
#define SMALL_LIMIT MIB
#define SMALL_SEGMENT (2 * MIB)
#define LARGE_SEGMENT (20 * MIB)
#define OWN_SEGMENT_FROM (10 * MIB)
#define SEGMENT_GRAIN (2 * MIB)
#define STREAMS 256
#define POOLS (2 * STREAMS)
#define SIZE_BITS 50
#define ENDLESS ((INT64_C(1) << 50) / POOLS) /* the address space of a pool's expandable segment */
#define NONE -1
#define WORD 64
#define CHUNK 1024 /* blocks that are made room for at once */
#define KNOWN_BITS 10
#define MOST_STEPS 100000000 /* through bins; recordings take 100 an event at most, so this is a hostile one */
#define GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* spreads numbers over the high bits of its product */

enum { USED, FREE, UNMAPPED };
enum { OK, OUT_OF_HOST_MEMORY, TOO_SCATTERED };

typedef struct Block Block;

typedef struct {
    uint64_t key;
    Block *last;
    uint32_t bin;
} Known;

struct Block {
    int64_t size, address;
    Block *before, *after; /* in the segment; at its ends the pool's edge */
    Block *less, *more;    /* in the bin, a ring through its head */
    Known *known;
    uint32_t bin;
    int16_t pool, state;
};

typedef struct {
    Block edge; /* as if in use. Behind it is the first block of the expandable segment */
    const uint64_t *keys; /* of the sizes that are asked for, in order */
    uint32_t count, first_bin, end_word;
} Pool;

typedef struct Chunk {
    struct Chunk *next;
    Block blocks[CHUNK];
} Chunk;

typedef struct {
    Pool pools[POOLS];
    Block *heads;   /* (bins,) the first of a pool has what is too small for any request; as large as nothing else */
    uint64_t *full; /* a bit for each bin that is not empty */
    Chunk *chunks;
    Block *spare; /* linked by `after` */
    int32_t fresh; /* blocks of the first chunk that were never used */
    int32_t expandable, failed;
    int64_t next_address, active, reserved, capacity, retries, steps;
    Known known[1 << KNOWN_BITS]; /* by a hash of the key */
} Allocator;

/* What the caller reads; peaks.py has the same order. Events are -1 where there is none. */
typedef struct {
    int64_t peak_active, peak_active_event, peak_reserved, peak_reserved_event, retries, failed_event;
} Result;

/* What PyTorch's allocator takes for so many bytes. */
static int64_t grains_of(int64_t bytes) { return ((bytes > 1 ? bytes : 1) + 511) >> 9; }

static int64_t up(int64_t value, int64_t grain) { return (value + grain - 1) / grain * grain; }

/* ---------------------------------------------------------------------- blocks of a segment */

static inline Block *new_block(Allocator *a, int64_t size, int64_t address, int16_t pool, int16_t state) {
    Block *block = a->spare;
    if (block) {
        a->spare = block->after;
    } else {
        if (!a->chunks || a->fresh == CHUNK) {
            Chunk *chunk = malloc(sizeof(Chunk));
            if (!chunk) {
                a->failed = OUT_OF_HOST_MEMORY;
                return NULL;
            }
            chunk->next = a->chunks;
            a->chunks = chunk;
            a->fresh = 0;
        }
        block = &a->chunks->blocks[a->fresh++];
    }
    Block *edge = &a->pools[pool].edge;
    block->size = size;
    block->address = address;
    block->before = block->after = edge;
    block->pool = pool;
    block->state = state;
    return block;
}

static void drop_block(Allocator *a, Block *block) {
    block->after = a->spare;
    a->spare = block;
}

static void follow(Block *left, Block *right) {
    left->after = right;
    right->before = left;
}

/* Cuts off the first `size` of a block, as a block in use. The rest stays what it is. */
static inline Block *cut(Allocator *a, Block *block, int64_t size) {
    Block *front = new_block(a, size, block->address, block->pool, USED);
    if (!front) return NULL;
    follow(block->before, front);
    follow(front, block);
    block->address += size;
    block->size -= size;
    return front;
}

static void join(Allocator *a, Block *left, Block *right) {
    left->size += right->size;
    follow(left, right->after);
    drop_block(a, right);
}

/* ---------------------------------------------------------------------- bins of free blocks */

static int32_t pool_of(int64_t size, int32_t stream) { return 2 * stream + (size > SMALL_LIMIT); }

/* A pool and a size, in this order. */
static uint64_t key_of(int32_t pool, int64_t size) { return (uint64_t)pool << SIZE_BITS | (uint64_t)size; }

static uint64_t slot_of(uint64_t key) { return key * GOLDEN >> (64 - KNOWN_BITS); }

/* What is known of a size: its bin is that of the largest size that is asked for and has room in this one. Most sizes
 * come again and again. */
static inline Known *known_of(Allocator *a, int32_t pool, int64_t size) {
    uint64_t key = key_of(pool, size);
    Known *known = &a->known[slot_of(key)];
    if (known->key != key) {
        const Pool *p = &a->pools[pool];
        uint32_t low = 0, high = p->count;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (p->keys[middle] <= key)
                low = middle + 1;
            else
                high = middle;
        }
        known->key = key;
        known->bin = p->first_bin + low;
        known->last = &a->heads[known->bin];
    }
    return known;
}

static int precedes(const Block *one, const Block *other) {
    return (one->size < other->size) | ((one->size == other->size) & (one->address < other->address));
}

/* Into its bin, looking for its place at the front and then where the last one of its size was. */
static inline void put_known(Allocator *a, Block *block, Known *known) {
    uint32_t bin = known->bin;
    Block *head = &a->heads[bin], *at = head->more;
    if (precedes(at, block)) {
        if (known->last->state == FREE && known->last->bin == bin) at = known->last;
        int64_t steps = a->steps;
        for (; precedes(at, block); at = at->more) steps++;
        for (; at->less != head && precedes(block, at->less); at = at->less) steps++;
        if ((a->steps = steps) > MOST_STEPS) a->failed = TOO_SCATTERED;
    }
    known->last = block;
    block->state = FREE;
    block->known = known;
    block->bin = bin;
    block->less = at->less;
    block->more = at;
    at->less->more = block;
    at->less = block;
    a->full[bin / WORD] |= UINT64_C(1) << bin % WORD;
}

static inline void put_in(Allocator *a, Block *block) {
    put_known(a, block, known_of(a, block->pool, block->size));
}

static inline void take_out(Allocator *a, Block *block) {
    block->state = USED;
    if (block->known->last == block) block->known->last = block->more;
    block->less->more = block->more;
    block->more->less = block->less;
    a->full[block->bin / WORD] &= ~((uint64_t)(block->less == block->more) << block->bin % WORD);
}

/* A free block has become larger. */
static inline void put_grown(Allocator *a, Block *block) {
    Known *known = known_of(a, block->pool, block->size);
    if (known->bin == block->bin && !precedes(block->more, block)) return;
    take_out(a, block);
    put_known(a, block, known);
}

/* A free block has become smaller. */
static inline void put_shrunk(Allocator *a, Block *block) {
    Known *known = known_of(a, block->pool, block->size);
    if (known->bin == block->bin && block->less == &a->heads[block->bin]) return;
    take_out(a, block);
    put_known(a, block, known);
}

/* The first free block of a bin and those behind it; NULL if there is none. */
static inline Block *first_from(const Allocator *a, const Pool *pool, uint32_t bin) {
    uint64_t mask = ~UINT64_C(0) << bin % WORD;
    for (uint32_t word = bin / WORD; word < pool->end_word; word++) {
        uint64_t full = a->full[word] & mask;
        if (full) return a->heads[word * WORD + __builtin_ctzll(full)].more;
        mask = ~UINT64_C(0);
    }
    return NULL;
}

static Block *next_free(const Allocator *a, const Block *block) {
    if (block->more != &a->heads[block->bin]) return block->more;
    return first_from(a, &a->pools[block->pool], block->bin + 1);
}

static int64_t room_in(const Block *block) {
    return block->size + (block->after->state == UNMAPPED ? block->after->size : 0);
}

static inline Block *best_fit(Allocator *a, int32_t pool, int64_t size) {
    Block *block = first_from(a, &a->pools[pool], known_of(a, pool, size)->bin);
    while (a->expandable && block) {
        Block *next = next_free(a, block);
        if (!next || room_in(next) >= room_in(block)) break;
        block = next;
    }
    return block;
}

/* ---------------------------------------------------------------------- segments */

static int64_t page_of(int32_t pool) { return pool % 2 ? LARGE_SEGMENT : SMALL_SEGMENT; }

/* Whole pages of a free block of an expandable segment. */
static void release_pages(Allocator *a, Block *block) {
    int64_t page = page_of(block->pool), end = block->address + block->size;
    int64_t from = up(block->address, page), to = end / page * page;
    if (to <= from) return;
    take_out(a, block);
    if (from > block->address) {
        Block *front = cut(a, block, from - block->address);
        if (!front) return;
        put_in(a, front);
    }
    if (to < end) {
        Block *pages = cut(a, block, to - from);
        if (!pages) return;
        put_in(a, block);
        block = pages;
    }
    block->state = UNMAPPED;
    a->reserved -= to - from;
    if (block->after->state == UNMAPPED) join(a, block, block->after);
    if (block->before->state == UNMAPPED) join(a, block->before, block);
}

static void release_all_pages(Allocator *a, const Pool *pool) {
    for (Block *block = pool->edge.after, *next; block != &pool->edge && !a->failed; block = next) {
        next = block->after;
        if (next->state == UNMAPPED) next = next->after; /* it may be joined */
        if (block->state == FREE) release_pages(a, block);
    }
}

static void release_segments(Allocator *a, const Pool *pool) {
    for (Block *block = first_from(a, pool, pool->first_bin), *next; block; block = next) {
        next = next_free(a, block);
        if (block->before != &pool->edge || block->after != &pool->edge) continue;
        take_out(a, block);
        a->reserved -= block->size;
        drop_block(a, block);
    }
}

static void release_cached(Allocator *a) {
    a->retries++;
    for (const Pool *pool = a->pools; pool < a->pools + POOLS; pool++) {
        if (!pool->count) continue;
        if (a->expandable)
            release_all_pages(a, pool);
        else
            release_segments(a, pool);
    }
}

static int fits(const Allocator *a, int64_t more) { return !a->capacity || a->reserved + more <= a->capacity; }

static Block *new_segment(Allocator *a, int32_t pool, int64_t size) {
    int64_t segment = size <= SMALL_LIMIT ? SMALL_SEGMENT : size < OWN_SEGMENT_FROM ? LARGE_SEGMENT : up(size, SEGMENT_GRAIN);
    if (!fits(a, segment)) return NULL;
    Block *block = new_block(a, segment, a->next_address, pool, USED);
    a->next_address += segment;
    a->reserved += segment;
    return block;
}

/* The lowest run of free and unmapped blocks with room for `size`; a free block may come before the first hole. */
static Block *expandable_run(Allocator *a, int32_t pool, int64_t size) {
    Block *edge = &a->pools[pool].edge;
    if (edge->after == edge) {
        Block *all = new_block(a, ENDLESS, 0, pool, UNMAPPED);
        if (all) follow(edge, all);
        return all;
    }
    for (Block *hole = edge->after; hole != edge; hole = hole->after) {
        if (hole->state != UNMAPPED) continue;
        Block *start = hole->before->state == FREE ? hole->before : hole;
        int64_t room = 0;
        for (Block *at = start; at->state != USED && room < size; at = at->after) room += at->size;
        if (room >= size) return start;
    }
    return NULL;
}

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

static Block *expand(Allocator *a, int32_t pool, int64_t size) {
    int64_t page = page_of(pool), missing = 0, have = 0;
    Block *start = expandable_run(a, pool, size);
    if (!start) return NULL;
    for (Block *at = start; have < size; at = at->after) {
        int64_t wanted = least(at->size, size - have);
        if (at->state == UNMAPPED) missing += up(wanted, page);
        have += wanted;
    }
    if (!fits(a, missing)) return NULL;
    a->reserved += missing;
    Block *joined = NULL, *next = start;
    for (have = 0; have < size; next = joined->after) {
        if (next->state == FREE) {
            take_out(a, next);
        } else {
            int64_t mapped = up(least(next->size, size - have), page);
            if (mapped < next->size && !(next = cut(a, next, mapped))) return NULL;
        }
        next->state = USED;
        have += next->size;
        if (joined)
            join(a, joined, next);
        else
            joined = next;
    }
    return joined;
}

static Block *grow(Allocator *a, int32_t pool, int64_t size) {
    return a->expandable ? expand(a, pool, size) : new_segment(a, pool, size);
}

static inline Block *allocate(Allocator *a, int64_t size, int32_t stream) {
    int32_t pool = pool_of(size, stream);
    Block *block = best_fit(a, pool, size);
    if (!block) {
        block = grow(a, pool, size);
        if (!block && !a->failed) {
            release_cached(a);
            block = grow(a, pool, size);
        }
        if (!block) return NULL;
        put_in(a, block);
    }
    if (block->size - size > (pool % 2 == 0 || a->expandable ? 0 : SMALL_LIMIT)) {
        Block *rest = block;
        block = cut(a, rest, size);
        if (!block) return NULL;
        put_shrunk(a, rest);
    } else {
        take_out(a, block);
    }
    a->active += block->size;
    return block;
}

static inline void give_back(Allocator *a, Block *block) {
    a->active -= block->size;
    Block *before = block->before, *after = block->after;
    if (before->state == FREE) {
        if (after->state == FREE) {
            take_out(a, after);
            join(a, block, after);
        }
        join(a, before, block);
        put_grown(a, before);
    } else if (after->state == FREE) {
        after->address = block->address;
        after->size += block->size;
        follow(before, after);
        drop_block(a, block);
        put_grown(a, after);
    } else {
        put_in(a, block);
    }
}

/* ---------------------------------------------------------------------- a tape */

static int ascending(const void *one, const void *other) {
    uint64_t left = *(const uint64_t *)one, right = *(const uint64_t *)other;
    return (left > right) - (left < right);
}

/* The keys of all that is asked for, each once and in order, and their number. */
static int64_t keys_of(Allocator *a, int64_t storages, const int64_t *sizes, const uint8_t *streams, uint64_t *keys) {
    int64_t count = 0, distinct = 0;
    for (int64_t at = 0; at < storages; at++) {
        int64_t size = grains_of(sizes[at]);
        uint64_t key = key_of(pool_of(size, streams ? streams[at] : 0), size);
        if (a->known[slot_of(key)].key != key) keys[count++] = a->known[slot_of(key)].key = key;
    }
    memset(a->known, 0, sizeof a->known);
    qsort(keys, (size_t)count, sizeof *keys, ascending);
    for (int64_t at = 0; at < count; at++)
        if (!at || keys[at] != keys[at - 1]) keys[distinct++] = keys[at];
    return distinct;
}

/* The bins of a pool begin with a word of their own, and with one for what is too small for any request. */
static int make_bins(Allocator *a, const uint64_t *keys, int64_t count) {
    uint32_t words = 0;
    for (int64_t at = 0; at < count;) {
        Pool *pool = &a->pools[keys[at] >> SIZE_BITS];
        pool->keys = keys + at;
        while (at < count && keys[at] >> SIZE_BITS == pool->keys[0] >> SIZE_BITS) at++;
        pool->count = (uint32_t)(keys + at - pool->keys);
        pool->first_bin = words * WORD;
        words += pool->count / WORD + 1;
        pool->end_word = words;
        pool->edge.before = pool->edge.after = &pool->edge;
    }
    a->full = calloc((size_t)words + 1, sizeof *a->full);
    a->heads = malloc(((size_t)words * WORD + 1) * sizeof *a->heads);
    if (!a->full || !a->heads) return 0;
    for (uint32_t bin = 0; bin < words * WORD; bin++) {
        Block *head = &a->heads[bin];
        *head = (Block){.size = INT64_MAX, .less = head, .more = head, .bin = bin, .state = FREE};
    }
    return 1;
}

static void run(Allocator *a, int64_t count, const int32_t *events, const int64_t *sizes, const uint8_t *streams,
                Block **held, int64_t *curve, Result *result) {
    for (int64_t at = 0; at < count && !a->failed; at++) {
        int32_t event = events[at];
        if (event < 0) {
            give_back(a, held[~event]);
        } else {
            Block *block = held[event] = allocate(a, grains_of(sizes[event]), streams ? streams[event] : 0);
            if (!block) {
                result->failed_event = at;
                return;
            }
            if (a->active > result->peak_active) {
                result->peak_active = a->active;
                result->peak_active_event = at;
            }
            if (a->reserved > result->peak_reserved) {
                result->peak_reserved = a->reserved;
                result->peak_reserved_event = at;
            }
        }
        if (curve) {
            curve[2 * at] = a->active;
            curve[2 * at + 1] = a->reserved;
        }
    }
}

static void free_all(Allocator *a) {
    for (Chunk *chunk = a->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(a->heads);
    free(a->full);
    free(a);
}

/* `sizes` in bytes and `streams` by storage (`streams` may be NULL); `capacity` in grains; `curve` is NULL or room for
 * two numbers per event: active and reserved behind it. Stops where the device is out of memory. */
int vramcast_peaks(int64_t count, const int32_t *events, int64_t storages, const int64_t *sizes, const uint8_t *streams,
                   int64_t capacity, int32_t expandable, int64_t *curve, Result *result) {
    *result = (Result){0, NONE, 0, NONE, 0, NONE};
    Allocator *a = calloc(1, sizeof *a);
    if (!a) return OUT_OF_HOST_MEMORY;
    a->capacity = capacity;
    a->expandable = expandable;
    uint64_t *keys = malloc(((size_t)storages + 1) * sizeof *keys);
    Block **held = malloc(((size_t)storages + 1) * sizeof *held);
    if (keys && held && make_bins(a, keys, keys_of(a, storages, sizes, streams, keys)))
        run(a, count, events, sizes, streams, held, curve, result);
    else
        a->failed = OUT_OF_HOST_MEMORY;
    int failed = a->failed;
    result->retries = a->retries;
    free(keys);
    free(held);
    free_all(a);
    return failed;
}

/* Numbers the storages of events in the order in which they are made, in place. `numbers` is NONE for each storage;
 * `order` gets their former numbers. Returns how many there are, or NONE where one is made or freed twice, or freed
 * before it is made. */
int64_t vramcast_number(int64_t count, int32_t *events, int32_t *numbers, int64_t *order) {
    int32_t made = 0;
    for (int64_t at = 0; at < count; at++) {
        int32_t event = events[at], *number = &numbers[event < 0 ? ~event : event];
        if (event >= 0) {
            if (*number != NONE) return NONE;
            order[made] = event;
            events[at] = *number = made++;
        } else {
            if (*number < 0) return NONE;
            events[at] = ~*number;
            *number = NONE - 1;
        }
    }
    return made;
}
