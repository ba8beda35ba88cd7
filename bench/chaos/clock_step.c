/* LD_PRELOAD: shifts the wall clock of one process by the nanoseconds in a shared file. Monotonic clocks are real. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const int64_t *volatile offset_ns;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CHAOS_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset_ns = mapped;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, id, now);
    if (failed || !offset_ns || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t shifted = now->tv_sec * SECOND + now->tv_nsec + *(const volatile int64_t *)offset_ns;
    now->tv_sec = shifted / SECOND;
    now->tv_nsec = shifted % SECOND;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec shifted;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &shifted))
        return -1;
    now->tv_sec = shifted.tv_sec;
    now->tv_usec = shifted.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *stored) {
    struct timespec shifted;
    clock_gettime(CLOCK_REALTIME, &shifted);
    if (stored)
        *stored = shifted.tv_sec;
    return shifted.tv_sec;
}
