/* PyTorch's caching allocator, replaying a tape: the compiled twin of tape_allocator.py, which says why each rule is
 * so. The two give the same figures, event by event; tests compare them.
 *
 * All sizes are in grains of 512 B. A pool holds what one stream allocates up to 1 MiB, or above it. Its free blocks
 * are an array sorted by size, then by address. Blocks of a segment form a list in the order of their addresses.
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
#define ENDLESS (INT64_C(1) << 50) /* the address space of an expandable segment */
#define BLOCK_BITS 24
#define STREAMS 256
#define NONE -1
#define GOLDEN 2654435769u /* spreads numbers over the bits of its product */

enum { USED, FREE, UNMAPPED };
enum { OK, OUT_OF_HOST_MEMORY };

typedef struct {
    int64_t size, address;
    int32_t before, after, pool;
    int32_t state;
} Block;

/* A free block as one number, by which they sort: its size, its address, its number. */
typedef unsigned __int128 Entry;

typedef struct {
    Entry *entries;
    int32_t count, room;
    int32_t first; /* block of the expandable segment */
} Pool;

typedef struct {
    Block *blocks;
    int32_t count, room, spare; /* spare: head of the list of unused blocks, linked by `after` */
    Pool pools[2 * STREAMS];
    int64_t next_address, active, reserved, capacity;
    int64_t retries;
    int expandable, failed;
    int32_t near[256]; /* by a hash of the size */
} Allocator;

/* What the caller reads; tape_allocator.py has the same order. Events are -1 where there is none. */
typedef struct {
    int64_t peak_active, peak_active_event, peak_reserved, peak_reserved_event, retries, failed_event;
} Result;

static int32_t new_block(Allocator *a, int64_t size, int64_t address, int32_t pool, int32_t state) {
    int32_t number = a->spare;
    if (number != NONE) {
        a->spare = a->blocks[number].after;
    } else {
        if (a->count == a->room) {
            int32_t room = a->room ? 2 * a->room : 4096;
            Block *grown = room <= 1 << BLOCK_BITS ? realloc(a->blocks, (size_t)room * sizeof(Block)) : NULL;
            if (!grown) {
                a->failed = 1;
                return NONE;
            }
            a->blocks = grown;
            a->room = room;
        }
        number = a->count++;
    }
    a->blocks[number] = (Block){size, address, NONE, NONE, pool, state};
    return number;
}

static void drop_block(Allocator *a, int32_t number) {
    a->blocks[number].after = a->spare;
    a->spare = number;
}

static int32_t block_at(const Pool *pool, int32_t at) {
    return (int32_t)(pool->entries[at] & ((1 << BLOCK_BITS) - 1));
}

/* Where an entry belongs. Steps repeat, so it is looked for where one of this size was last. */
static int32_t rank(Allocator *a, const Pool *pool, Entry entry) {
    const Entry *entries = pool->entries;
    int32_t *last = &a->near[(uint32_t)(entry >> 64) * GOLDEN >> 24], count = pool->count, at = *last < count ? *last : count;
    for (int tries = 0; tries < 8; tries++) {
        if (at > 0 && entries[at - 1] >= entry)
            at--;
        else if (at < count && entries[at] < entry)
            at++;
        else
            return *last = at;
    }
    for (at = 0; at < count;) {
        int32_t middle = (at + count) / 2;
        if (entries[middle] < entry)
            at = middle + 1;
        else
            count = middle;
    }
    return *last = at;
}

static Entry entry_of(const Allocator *a, int32_t number) {
    const Block *block = &a->blocks[number];
    return (Entry)block->size << 64 | (uint64_t)block->address << BLOCK_BITS | (uint32_t)number;
}

static void shift(Entry *entries, int32_t to, int32_t from, int32_t count) {
    memmove(entries + to, entries + from, (size_t)count * sizeof(Entry));
}

static int32_t find(Allocator *a, int32_t number) {
    Pool *pool = &a->pools[a->blocks[number].pool];
    return rank(a, pool, entry_of(a, number));
}

static void remove_at(Pool *pool, int32_t at) {
    pool->count--;
    shift(pool->entries, at, at + 1, pool->count - at);
}

static void take_out(Allocator *a, int32_t number) {
    remove_at(&a->pools[a->blocks[number].pool], find(a, number));
}

static void put_in(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number];
    Pool *pool = &a->pools[block->pool];
    if (pool->count == pool->room) {
        int32_t room = pool->room ? 2 * pool->room : 256;
        Entry *grown = realloc(pool->entries, (size_t)room * sizeof(Entry));
        if (!grown) {
            a->failed = 1;
            return;
        }
        pool->entries = grown;
        pool->room = room;
    }
    Entry entry = entry_of(a, number);
    int32_t at = rank(a, pool, entry);
    shift(pool->entries, at + 1, at, pool->count - at);
    pool->entries[at] = entry;
    pool->count++;
    block->state = FREE;
}

/* Puts a free block in place of the one at `at`, of which it was cut, or to which it was added. */
static void put_instead(Allocator *a, int32_t at, int32_t number) {
    Pool *pool = &a->pools[a->blocks[number].pool];
    Entry *entries = pool->entries, entry = entry_of(a, number);
    if (at > 0 && entry < entries[at - 1]) {
        int32_t to = rank(a, pool, entry);
        shift(entries, to + 1, to, at - to);
        at = to;
    } else if (at + 1 < pool->count && entries[at + 1] < entry) {
        int32_t to = rank(a, pool, entry) - 1;
        shift(entries, at, at + 1, to - at);
        at = to;
    }
    entries[at] = entry;
    a->blocks[number].state = FREE;
}

/* Cuts a block after `size`. Returns the rest, which is in no list of free blocks. */
static int32_t cut(Allocator *a, int32_t number, int64_t size) {
    int32_t rest = new_block(a, a->blocks[number].size - size, a->blocks[number].address + size,
                             a->blocks[number].pool, a->blocks[number].state);
    if (rest == NONE) return NONE;
    Block *block = &a->blocks[number], *tail = &a->blocks[rest];
    tail->before = number;
    tail->after = block->after;
    if (tail->after != NONE) a->blocks[tail->after].before = rest;
    block->after = rest;
    block->size = size;
    return rest;
}

static void join(Allocator *a, int32_t left, int32_t right) {
    Block *kept = &a->blocks[left], *gone = &a->blocks[right];
    kept->size += gone->size;
    kept->after = gone->after;
    if (kept->after != NONE) a->blocks[kept->after].before = left;
    drop_block(a, right);
}

static int64_t up(int64_t value, int64_t grain) { return (value + grain - 1) / grain * grain; }

static int64_t room_in(const Allocator *a, int32_t number) {
    int32_t after = a->blocks[number].after;
    return a->blocks[number].size + (after != NONE && a->blocks[after].state == UNMAPPED ? a->blocks[after].size : 0);
}

/* Its place in the pool. */
static int32_t best_fit(Allocator *a, Pool *pool, int64_t size) {
    int32_t at = rank(a, pool, (Entry)size << 64);
    if (at == pool->count) return NONE;
    if (a->expandable)
        while (at + 1 < pool->count && room_in(a, block_at(pool, at + 1)) < room_in(a, block_at(pool, at))) at++;
    return at;
}

/* Free blocks that are a whole segment, or whole pages of an expandable one, go back to the device. */
static void release_pages(Allocator *a, int32_t number, int64_t page) {
    Block block = a->blocks[number];
    int64_t from = up(block.address, page), to = (block.address + block.size) / page * page;
    if (to <= from) return;
    take_out(a, number);
    int32_t middle = number;
    if (from > block.address) {
        middle = cut(a, number, from - block.address);
        if (middle == NONE) return;
        put_in(a, number);
    }
    if (to < block.address + block.size) {
        int32_t tail = cut(a, middle, to - from);
        if (tail == NONE) return;
        put_in(a, tail);
    }
    a->blocks[middle].state = UNMAPPED;
    a->reserved -= to - from;
    int32_t after = a->blocks[middle].after, before = a->blocks[middle].before;
    if (after != NONE && a->blocks[after].state == UNMAPPED) join(a, middle, after);
    if (before != NONE && a->blocks[before].state == UNMAPPED) join(a, before, middle);
}

static void release_cached(Allocator *a) {
    a->retries++;
    for (int32_t p = 0; p < 2 * STREAMS; p++) {
        Pool *pool = &a->pools[p];
        if (a->expandable) {
            int32_t next;
            for (int32_t number = pool->first; number != NONE; number = next) {
                next = a->blocks[number].after;
                if (a->blocks[number].state == FREE) {
                    int32_t beyond = next == NONE ? NONE : a->blocks[next].after;
                    int ends_unmapped = next != NONE && a->blocks[next].state == UNMAPPED;
                    release_pages(a, number, p % 2 ? LARGE_SEGMENT : SMALL_SEGMENT);
                    if (a->failed) return;
                    if (ends_unmapped) next = beyond; /* it may have been joined */
                }
            }
            continue;
        }
        int32_t kept = 0;
        for (int32_t at = 0; at < pool->count; at++) {
            int32_t number = block_at(pool, at);
            Block *block = &a->blocks[number];
            if (block->before == NONE && block->after == NONE) {
                a->reserved -= block->size;
                drop_block(a, number);
            } else {
                pool->entries[kept++] = pool->entries[at];
            }
        }
        pool->count = kept;
    }
}

static int fits(const Allocator *a, int64_t more) { return !a->capacity || a->reserved + more <= a->capacity; }

static int32_t new_segment(Allocator *a, int32_t pool, int64_t size) {
    int64_t segment = size <= SMALL_LIMIT ? SMALL_SEGMENT : size < OWN_SEGMENT_FROM ? LARGE_SEGMENT : up(size, SEGMENT_GRAIN);
    if (!fits(a, segment)) return NONE;
    int32_t number = new_block(a, segment, a->next_address, pool, USED);
    a->next_address += segment;
    a->reserved += segment;
    return number;
}

/* The lowest run of free and unmapped blocks with room for `size`; a free block may come before the first hole. */
static int32_t expandable_run(Allocator *a, int32_t pool, int64_t size) {
    if (a->pools[pool].first == NONE) {
        a->pools[pool].first = new_block(a, ENDLESS / (2 * STREAMS), 0, pool, UNMAPPED);
        return a->pools[pool].first;
    }
    for (int32_t number = a->pools[pool].first; number != NONE; number = a->blocks[number].after) {
        if (a->blocks[number].state != UNMAPPED) continue;
        int32_t start = number, before = a->blocks[number].before;
        if (before != NONE && a->blocks[before].state == FREE) start = before;
        int64_t room = 0;
        for (int32_t at = start; at != NONE && a->blocks[at].state != USED && room < size; at = a->blocks[at].after)
            room += a->blocks[at].size;
        if (room >= size) return start;
    }
    return NONE;
}

static int32_t expand(Allocator *a, int32_t pool, int64_t size) {
    int64_t page = pool % 2 ? LARGE_SEGMENT : SMALL_SEGMENT, missing = 0, have = 0;
    int32_t start = expandable_run(a, pool, size);
    if (start == NONE) return NONE;
    for (int32_t at = start; have < size; at = a->blocks[at].after) {
        int64_t wanted = a->blocks[at].size < size - have ? a->blocks[at].size : size - have;
        if (a->blocks[at].state == UNMAPPED) missing += up(wanted, page);
        have += wanted;
    }
    if (!fits(a, missing)) return NONE;
    if (a->blocks[start].state == FREE) take_out(a, start);
    while (a->blocks[start].state == UNMAPPED || a->blocks[start].size < size) {
        int32_t next = a->blocks[start].state == UNMAPPED ? start : a->blocks[start].after;
        int64_t have_now = next == start ? 0 : a->blocks[start].size;
        if (a->blocks[next].state == FREE) {
            take_out(a, next);
        } else {
            int64_t mapped = up(size - have_now < a->blocks[next].size ? size - have_now : a->blocks[next].size, page);
            if (mapped < a->blocks[next].size && cut(a, next, mapped) == NONE) return NONE;
            a->reserved += a->blocks[next].size;
        }
        a->blocks[next].state = a->blocks[start].state = USED;
        if (next != start) join(a, start, next);
    }
    return start;
}

static int32_t grow(Allocator *a, int32_t pool, int64_t size) {
    return a->expandable ? expand(a, pool, size) : new_segment(a, pool, size);
}

static int32_t allocate(Allocator *a, int64_t size, int32_t stream) {
    int32_t p = 2 * stream + (size > SMALL_LIMIT), number;
    Pool *pool = &a->pools[p];
    int32_t at = best_fit(a, pool, size);
    if (at != NONE) {
        number = block_at(pool, at);
    } else {
        number = grow(a, p, size);
        if (number == NONE && !a->failed) {
            release_cached(a);
            number = grow(a, p, size);
        }
        if (number == NONE) return NONE;
    }
    int64_t rest = a->blocks[number].size - size;
    if (rest > (p % 2 == 0 || a->expandable ? 0 : SMALL_LIMIT)) {
        int32_t tail = cut(a, number, size);
        if (tail == NONE) return NONE;
        if (at != NONE)
            put_instead(a, at, tail);
        else
            put_in(a, tail);
    } else if (at != NONE) {
        remove_at(pool, at);
    }
    a->blocks[number].state = USED;
    a->active += a->blocks[number].size;
    return number;
}

static int is_free(const Allocator *a, int32_t number) { return number != NONE && a->blocks[number].state == FREE; }

static void give_back(Allocator *a, int32_t number) {
    a->active -= a->blocks[number].size;
    int32_t after = a->blocks[number].after, before = a->blocks[number].before, at = NONE;
    if (is_free(a, after)) {
        at = find(a, after);
        join(a, number, after);
    }
    if (is_free(a, before)) {
        if (at != NONE) remove_at(&a->pools[a->blocks[number].pool], at);
        at = find(a, before);
        join(a, before, number);
        number = before;
    }
    if (at != NONE)
        put_instead(a, at, number);
    else
        put_in(a, number);
}

/* `grains` and `streams` by storage (`streams` may be NULL), `held` is room for a number per storage; `curve` is NULL or
 * room for two numbers per event: active and reserved behind it. Stops where the device is out of memory. */
int vramcast_replay(int64_t count, const int32_t *events, const int64_t *grains, const uint8_t *streams,
                    int64_t capacity, int32_t expandable, int32_t *held, int64_t *curve, Result *result) {
    Allocator *a = calloc(1, sizeof(Allocator));
    if (!a) return OUT_OF_HOST_MEMORY;
    a->spare = NONE;
    a->capacity = capacity;
    a->expandable = expandable;
    for (int32_t p = 0; p < 2 * STREAMS; p++) a->pools[p].first = NONE;
    *result = (Result){0, NONE, 0, NONE, 0, NONE};
    for (int64_t at = 0; at < count; at++) {
        int32_t event = events[at];
        if (event < 0) {
            give_back(a, held[~event]);
        } else {
            int32_t number = allocate(a, grains[event], streams ? streams[event] : 0);
            if (a->failed) break;
            if (number == NONE) {
                result->failed_event = at;
                break;
            }
            held[event] = number;
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
    result->retries = a->retries;

    int failed = a->failed;
    for (int32_t p = 0; p < 2 * STREAMS; p++) free(a->pools[p].entries);
    free(a->blocks);
    free(a);
    return failed ? OUT_OF_HOST_MEMORY : OK;
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
