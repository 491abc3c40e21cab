/* System calls that fail, and a clock that jumps, for one process: preloaded, told what to do by a file.

   FAULTS names the file. Each of its lines is one of
       CALL ERRNO WORD    CALL (open, pipe) fails with ERRNO where its path has WORD in it ("-": whatever it is)
       clock SECONDS -    the time of day is off by so much
   It is read again at every call, so what is written there holds from then on. Children are not told. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static char control[4096];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS");
    if (path) strncpy(control, path, sizeof control - 1);
    unsetenv("LD_PRELOAD");
    unsetenv("FAULTS");
}

/* Return the number that the file gives a call, 0 where it gives none. By system calls alone: nothing here is ours. */
static long told(const char *call, const char *path) {
    char text[4096], name[64], word[1024];
    long number;
    int file = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    ssize_t size;
    if (!control[0]) return 0;
    if (file < 0) return 0;
    size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (size <= 0) return 0;
    text[size] = 0;
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (sscanf(line, "%63s %ld %1023s", name, &number, word) == 3 && !strcmp(name, call))
            if (!strcmp(word, "-") || (path && strstr(path, word))) return number;
    return 0;
}

static int fails(const char *call, const char *path) {
    int before = errno;
    long number = told(call, path);
    errno = number ? (int)number : before;
    return number != 0;
}

#define OPEN(NAME)                                                                  \
    int NAME(const char *path, int flags, ...) {                                    \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        int mode = va_arg(rest, int);                                               \
        va_end(rest);                                                               \
        if (fails("open", path)) return -1;                                         \
        return syscall(SYS_openat, AT_FDCWD, path, flags, mode);                    \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(NAME)                                                                \
    int NAME(int folder, const char *path, int flags, ...) {                        \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        int mode = va_arg(rest, int);                                               \
        va_end(rest);                                                               \
        if (fails("open", path)) return -1;                                         \
        return syscall(SYS_openat, folder, path, flags, mode);                      \
    }
OPENAT(openat)
OPENAT(openat64)

int pipe2(int ends[2], int flags) {
    if (fails("pipe", NULL)) return -1;
    return syscall(SYS_pipe2, ends, flags);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && clock == CLOCK_REALTIME) now->tv_sec += told("clock", NULL);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    (void)zone;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}
