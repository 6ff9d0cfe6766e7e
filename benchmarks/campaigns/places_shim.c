// A clock that jumps and a folder without upper case, for the programs that are started with it in LD_PRELOAD. See places.py.
//
// jump_clock(mode) changes the time of day of this process, not the monotonic clock: 1 adds a day at every call, 2 takes one away,
// 3 is 1 January 1970, 4 the year 2130. fold_case(folder): below this folder, names that differ in case only are one file.

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int mode;
static long calls;
static char folded[PATH_MAX];

void jump_clock(int wanted) { mode = wanted; }
void fold_case(const char* folder) { snprintf(folded, sizeof folded, "%s", folder); }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void shift(struct timespec* now) {
    const long day = 86400, turn = __sync_add_and_fetch(&calls, 1);
    if (mode == 1) now->tv_sec += turn * day;
    if (mode == 2) now->tv_sec -= turn % 10000 * day;
    if (mode == 3) now->tv_sec = 0;
    if (mode == 4) now->tv_sec += 104L * 365 * day;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    const int found = real(clock, now);
    if (mode && !found && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(now);
    return found;
}

time_t time(time_t* out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

static const char* fold(const char* path, char* room) {
    const size_t size = strlen(folded);
    if (!size || !path || strncmp(path, folded, size) || (path[size] && path[size] != '/') || strlen(path) >= PATH_MAX) return path;
    strcpy(room, path);
    for (char* letter = room + size; *letter; letter++) *letter = (char)tolower((unsigned char)*letter);
    return room;
}

#define ONE(type, name, before, given, ...)                          \
    type name(before const char* path __VA_ARGS__) {                 \
        char room[PATH_MAX];                                         \
        return REAL(name) given;                                     \
    }
#define C ,
ONE(int, access, , (fold(path, room), how), C int how)
ONE(int, faccessat, int at C, (at, fold(path, room), how, flags), C int how C int flags)
ONE(int, stat, , (fold(path, room), out), C struct stat* out)
ONE(int, stat64, , (fold(path, room), out), C struct stat64* out)
ONE(int, lstat, , (fold(path, room), out), C struct stat* out)
ONE(int, lstat64, , (fold(path, room), out), C struct stat64* out)
ONE(int, fstatat, int at C, (at, fold(path, room), out, flags), C struct stat* out C int flags)
ONE(int, fstatat64, int at C, (at, fold(path, room), out, flags), C struct stat64* out C int flags)
ONE(int, statx, int at C, (at, fold(path, room), flags, mask, out), C int flags C unsigned mask C struct statx* out)
ONE(int, mkdir, , (fold(path, room), bits), C mode_t bits)
ONE(int, mkdirat, int at C, (at, fold(path, room), bits), C mode_t bits)
ONE(int, unlink, , (fold(path, room)))
ONE(int, unlinkat, int at C, (at, fold(path, room), flags), C int flags)
ONE(int, rmdir, , (fold(path, room)))
ONE(int, chmod, , (fold(path, room), bits), C mode_t bits)
ONE(int, chdir, , (fold(path, room)))
ONE(DIR*, opendir, , (fold(path, room)))
ONE(FILE*, fopen, , (fold(path, room), how), C const char* how)
ONE(FILE*, fopen64, , (fold(path, room), how), C const char* how)

#define TWO(name)                                              \
    int name(const char* from, const char* to) {               \
        char room[PATH_MAX], other[PATH_MAX];                  \
        return REAL(name)(fold(from, room), fold(to, other));  \
    }
TWO(rename)
TWO(link)

#define OPEN(name, before, given)                                           \
    int name(before const char* path, int flags, ...) {                     \
        char room[PATH_MAX];                                                \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        const mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        return REAL(name) given;                                            \
    }
OPEN(open, , (fold(path, room), flags, bits))
OPEN(open64, , (fold(path, room), flags, bits))
OPEN(openat, int at C, (at, fold(path, room), flags, bits))
OPEN(openat64, int at C, (at, fold(path, room), flags, bits))

int renameat(int one, const char* from, int two, const char* to) {
    char room[PATH_MAX], other[PATH_MAX];
    return REAL(renameat)(one, fold(from, room), two, fold(to, other));
}
