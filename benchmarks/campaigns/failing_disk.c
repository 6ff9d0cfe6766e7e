/* Makes the disk of a process fail, kills the process at a chosen operation, and records what it changes.

   Preloaded (LD_PRELOAD), it does nothing until the process calls failing_disk(). From then on it counts every operation
   that changes something below a folder: creating, writing, truncating, syncing, renaming, linking and removing. Descendants
   share the count. At a chosen operation a fault begins, or the whole process group is killed with signal 9: a write is then
   done in part. Each operation is appended to a record, with its bytes, which power_cut.py replays. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, FULL, READ_ONLY, BROKEN, SHORT };

struct shared {
    long count;
    uint64_t random;
};

struct __attribute__((packed)) head { /* of a record; then two paths and the bytes */
    char kind;
    uint8_t folder;
    uint16_t first, second;
    uint32_t size;
    uint64_t inode, offset;
};

static char root[4096];
static size_t root_length;
static int fault, lasting, record = -1;
static long fault_at, kill_at;
static struct shared *state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

/* where: a folder without a slash at its end. lasting: whether the fault stays, or hits one operation. seed: of the sizes of
   partial writes. to: the file of the record. */
void failing_disk(const char *where, int which, long at, int stays, long death, unsigned long seed, const char *to) {
    state = mmap(0, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    state->random = seed * 2654435769u + 1;
    fault = which, fault_at = at, lasting = stays, kill_at = death;
    int opened = REAL(open)(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    record = fcntl(opened, F_DUPFD_CLOEXEC, 500);
    close(opened);
    snprintf(root, sizeof root, "%s", where);
    root_length = strlen(root);
}

static size_t part_of(size_t size) {
    state->random = state->random * 6364136223846793005u + 1442695040888963407u;
    return size ? (state->random >> 33) % size : 0;
}

static void place_of(int folder, const char *path, char *out) {
    char start[4096] = "";
    if (path[0] == '/')
        snprintf(out, 4096, "%s", path);
    else {
        char name[64] = "/proc/self/cwd";
        if (folder != AT_FDCWD) snprintf(name, sizeof name, "/proc/self/fd/%d", folder);
        ssize_t found = readlink(name, start, sizeof start - 1);
        start[found > 0 ? found : 0] = 0;
        snprintf(out, 4096, "%.2040s/%.2040s", start, path);
    }
}

static int inside(const char *path) {
    return root_length && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int place_of_file(int file, char *out) {
    char name[64];
    if (!root_length || file == record) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t found = readlink(name, out, 4095);
    if (found <= 0) return 0;
    out[found] = 0;
    return inside(out);
}

static uint64_t inode_of(int file) {
    struct stat facts;
    return fstat(file, &facts) ? 0 : facts.st_ino;
}

static void note(char kind, int folder, uint64_t inode, uint64_t offset, const char *a, const char *b, const void *data, size_t size) {
    struct head head = {kind, folder, strlen(a), strlen(b), data ? size : 0, inode, offset};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)a, head.first}, {(void *)b, head.second}, {(void *)data, head.size}};
    int before = errno;
    if (REAL(writev)(record, parts, data ? 4 : 3) < 0) _exit(99);
    errno = before;
}

/* Counts an operation. Returns the error that it has to fail with, 0 for none, -1 if the process is to die in it. */
static int next(char kind) {
    long number = __atomic_add_fetch(&state->count, 1, __ATOMIC_SEQ_CST);
    if (number == kill_at) return -1;
    if (!fault_at || number < fault_at || (!lasting && number > fault_at)) return 0;
    if (fault == FULL) return strchr("CWMLYV", kind) ? ENOSPC : 0;
    if (fault == READ_ONLY) return kind == 'S' ? 0 : EROFS;
    if (fault == BROKEN) return strchr("WSR", kind) ? EIO : 0;
    return 0;
}

static void die(void) {
    kill(0, SIGKILL);
    for (;;) pause();
}

#define GUARD(kind, path, other, call)                     \
    do {                                                   \
        pthread_mutex_lock(&lock);                         \
        int error = next(kind);                            \
        if (error < 0) die();                              \
        int result = -1;                                   \
        if (error) errno = error;                          \
        else result = call;                                \
        if (result >= 0) note(kind, 0, 0, 0, path, other, 0, 0); \
        else note('x', 0, kind, 0, path, other, 0, 0);     \
        pthread_mutex_unlock(&lock);                       \
        return result;                                     \
    } while (0)

static int guarded_open(int folder, const char *path, int flags, mode_t mode) {
    char place[4096];
    if (!root_length || !(flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR))) return REAL(openat)(folder, path, flags, mode);
    place_of(folder, path, place);
    if (!inside(place)) return REAL(openat)(folder, path, flags, mode);
    struct stat facts;
    int there = !stat(place, &facts);
    char kind = !there ? 'C' : flags & O_TRUNC ? 'T' : 'O';
    if (!there && !(flags & O_CREAT)) return REAL(openat)(folder, path, flags, mode);
    if (there && flags & O_CREAT && flags & O_EXCL) return errno = EEXIST, -1;
    pthread_mutex_lock(&lock);
    int error = kind == 'O' && !(fault == READ_ONLY && fault_at && state->count >= fault_at) ? 0 : next(kind);
    if (error < 0) die();
    int result = -1;
    if (error) errno = error, note('x', 0, kind, 0, place, "", 0, 0);
    else if ((result = REAL(openat)(folder, path, flags, mode)) >= 0) note(kind, 0, inode_of(result), 0, place, "", 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

#define MODE(flags)                                   \
    mode_t mode = 0;                                  \
    if (flags & (O_CREAT | O_TMPFILE)) {              \
        va_list more;                                 \
        va_start(more, flags);                        \
        mode = va_arg(more, mode_t);                  \
        va_end(more);                                 \
    }

int open(const char *path, int flags, ...) { MODE(flags) return guarded_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return guarded_open(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return guarded_open(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return guarded_open(folder, path, flags, mode); }

/* at: where to write, -1 for the position of the file */
static ssize_t guarded_write(int file, const void *data, size_t size, off_t at) {
    char place[4096];
    if (!root_length || !size || !place_of_file(file, place))
        return at < 0 ? REAL(write)(file, data, size) : REAL(pwrite)(file, data, size, at);
    pthread_mutex_lock(&lock);
    int error = next('W');
    size_t wanted = error && error != EROFS ? part_of(size) : size;
    if (!error && fault == SHORT && fault_at && state->count >= fault_at) wanted = 1 + part_of(size);
    ssize_t done = -1;
    if (error != EROFS && wanted) {
        done = at < 0 ? REAL(write)(file, data, wanted) : REAL(pwrite)(file, data, wanted, at);
        off_t offset = at < 0 ? lseek(file, 0, SEEK_CUR) - done : at;
        if (done > 0) note('W', 0, inode_of(file), offset, place, "", data, done);
    }
    if (error < 0) die();
    /* As on a real disk: what still fits is written, and the next call fails. */
    if (error && (done <= 0 || error == EIO)) errno = error, done = -1, note('x', 0, 'W', 0, place, "", 0, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int file, const void *data, size_t size) { return guarded_write(file, data, size, -1); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return guarded_write(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off_t at) { return guarded_write(file, data, size, at); }

ssize_t writev(int file, const struct iovec *parts, int count) {
    char place[4096];
    if (!root_length || !place_of_file(file, place)) return REAL(writev)(file, parts, count);
    for (int each = 0; each < count; each++)
        if (parts[each].iov_len) return guarded_write(file, parts[each].iov_base, parts[each].iov_len, -1);
    return 0;
}

/* Copies inside the kernel are not seen: callers fall back to read and write. */
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    char place[4096];
    return place_of_file(out, place) ? (errno = ENOSYS, -1) : REAL(sendfile)(out, in, at, size);
}
ssize_t sendfile64(int out, int in, off_t *at, size_t size) {
    char place[4096];
    return place_of_file(out, place) ? (errno = ENOSYS, -1) : REAL(sendfile)(out, in, at, size);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *at, size_t size, unsigned flags) {
    char place[4096];
    return place_of_file(out, place) ? (errno = ENOSYS, -1) : REAL(copy_file_range)(in, from, out, at, size, flags);
}

static int guarded_sync(int file, int whole) {
    char place[4096];
    if (!place_of_file(file, place)) return whole ? REAL(fsync)(file) : REAL(fdatasync)(file);
    pthread_mutex_lock(&lock);
    int error = next('S');
    if (error < 0) die();
    if (error) errno = error;
    struct stat facts = {0};
    fstat(file, &facts);
    note(error ? 'x' : 'S', S_ISDIR(facts.st_mode), facts.st_ino, 0, place, "", 0, 0); /* the record stands in for the disk */
    pthread_mutex_unlock(&lock);
    return error ? -1 : 0;
}

int fsync(int file) { return guarded_sync(file, 1); }
int fdatasync(int file) { return guarded_sync(file, 0); }

static int guarded_truncate(int file, off_t size) {
    char place[4096];
    if (!place_of_file(file, place)) return REAL(ftruncate)(file, size);
    pthread_mutex_lock(&lock);
    int error = next('V');
    if (error < 0) die();
    int result = -1;
    if (error) errno = error;
    else if (!(result = REAL(ftruncate)(file, size))) note('V', 0, inode_of(file), size, place, "", 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int file, off_t size) { return guarded_truncate(file, size); }
int ftruncate64(int file, off_t size) { return guarded_truncate(file, size); }

static int guarded_rename(int from, const char *old, int to, const char *new, unsigned flags) {
    char a[4096], b[4096];
    if (root_length) {
        place_of(from, old, a), place_of(to, new, b);
        if (inside(a) || inside(b)) GUARD('R', a, b, REAL(renameat2)(from, old, to, new, flags));
    }
    return REAL(renameat2)(from, old, to, new, flags);
}

int rename(const char *old, const char *new) { return guarded_rename(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return guarded_rename(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return guarded_rename(from, old, to, new, flags);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char a[4096], b[4096];
    if (root_length) {
        place_of(from, old, a), place_of(to, new, b);
        if (inside(b)) GUARD('L', a, b, REAL(linkat)(from, old, to, new, flags));
    }
    return REAL(linkat)(from, old, to, new, flags);
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *old, int to, const char *new) {
    char b[4096];
    if (root_length) {
        place_of(to, new, b);
        if (inside(b)) GUARD('Y', old, b, REAL(symlinkat)(old, to, new));
    }
    return REAL(symlinkat)(old, to, new);
}
int symlink(const char *old, const char *new) { return symlinkat(old, AT_FDCWD, new); }

int unlinkat(int folder, const char *path, int flags) {
    char place[4096];
    if (root_length) {
        place_of(folder, path, place);
        if (inside(place)) GUARD(flags & AT_REMOVEDIR ? 'D' : 'U', place, "", REAL(unlinkat)(folder, path, flags));
    }
    return REAL(unlinkat)(folder, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char place[4096];
    struct stat facts;
    if (root_length) {
        place_of(folder, path, place);
        if (inside(place) && stat(place, &facts)) GUARD('M', place, "", REAL(mkdirat)(folder, path, mode));
    }
    return REAL(mkdirat)(folder, path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
