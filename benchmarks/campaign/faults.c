/* Counts the file operations of a process under one folder and lets the n-th of them fail (LD_PRELOAD). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL = -2, SHORT = -1 };

long fault_count = 0; /* operations so far */
long fault_at = 0;    /* the operation that fails; 0: none */
int fault_kind = 0;   /* an errno, KILL or SHORT */
char fault_prefix[PATH_MAX] = "";
char fault_name[64] = ""; /* the operation that failed */
char fault_log[1 << 20]; /* the first letter of each operation's name ("n": rename, "p": pread) */
static char watched[65536];

void fault_start(const char *prefix, long at, int kind) {
    strncpy(fault_prefix, prefix, sizeof fault_prefix - 1);
    fault_count = 0, fault_at = at, fault_kind = kind, fault_name[0] = 0;
    memset(watched, 0, sizeof watched);
}

static int ours(const char *path) {
    return fault_prefix[0] && path && strncmp(path, fault_prefix, strlen(fault_prefix)) == 0;
}
static int known(int file) { return file >= 0 && file < (int)sizeof watched && watched[file]; }

/* 1: the caller must fail with errno set; 2: it must do half of its work. */
static int fails(const char *name) {
    long number = __atomic_add_fetch(&fault_count, 1, __ATOMIC_SEQ_CST);
    if (number < (long)sizeof fault_log) fault_log[number] = strcmp(name, "rename") ? name[0] : 'n';
    if (number != fault_at) return 0;
    strncpy(fault_name, name, sizeof fault_name - 1);
    if (fault_kind == KILL) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (fault_kind == SHORT) return 2;
    errno = fault_kind;
    return 1;
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        mode_t mode = 0;                                                    \
        va_list rest;                                                       \
        va_start(rest, flags);                                              \
        if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(rest, mode_t);     \
        va_end(rest);                                                       \
        int own = ours(path);                                               \
        if (own && fails("open") == 1) return -1;                           \
        int file = REAL(name)(path, flags, mode);                           \
        if (file >= 0 && file < (int)sizeof watched) watched[file] = own;   \
        return file;                                                        \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                                      \
    int name(int folder, const char *path, int flags, ...) {                              \
        mode_t mode = 0;                                                                  \
        va_list rest;                                                                     \
        va_start(rest, flags);                                                            \
        if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(rest, mode_t);                   \
        va_end(rest);                                                                     \
        int own = ours(path) || known(folder);                                            \
        if (own && fails("openat") == 1) return -1;                                       \
        int file = REAL(name)(folder, path, flags, mode);                                 \
        if (file >= 0 && file < (int)sizeof watched) watched[file] = own;                 \
        return file;                                                                      \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t size) {
    if (known(file)) {
        int how = fails("write");
        if (how == 1) return -1;
        if (how == 2 && size > 1) size /= 2;
    }
    return REAL(write)(file, data, size);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    if (known(file)) {
        int how = fails("writev");
        if (how == 1) return -1;
        if (how == 2 && count > 1) count /= 2;
    }
    return REAL(writev)(file, parts, count);
}
ssize_t read(int file, void *data, size_t size) {
    if (known(file)) {
        int how = fails("read");
        if (how == 1) return -1;
        if (how == 2 && size > 1) size /= 2;
    }
    return REAL(read)(file, data, size);
}
#define PREAD(name, offset_t)                                               \
    ssize_t name(int file, void *data, size_t size, offset_t offset) {      \
        if (known(file)) {                                                  \
            int how = fails("pread");                                       \
            if (how == 1) return -1;                                        \
            if (how == 2 && size > 1) size /= 2;                            \
        }                                                                   \
        return REAL(name)(file, data, size, offset);                        \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
int fsync(int file) {
    if (known(file) && fails("fsync") == 1) return -1;
    return REAL(fsync)(file);
}
int rename(const char *from, const char *to) {
    if (ours(to) && fails("rename") == 1) return -1;
    return REAL(rename)(from, to);
}
int mkdir(const char *path, mode_t mode) {
    if (ours(path) && fails("mkdir") == 1) return -1;
    return REAL(mkdir)(path, mode);
}
int close(int file) {
    if (file >= 0 && file < (int)sizeof watched) watched[file] = 0;
    return REAL(close)(file);
}
