/* A disk that goes bad by order: preloaded into a process, it fails, fills, slows and hangs calls.

   Only files below DANUBE_DISK_SHIM_DIR are concerned. What happens to them is said by the file
   DANUBE_DISK_SHIM_CONTROL, which is read again whenever it has been replaced. One rule a line:

       OPERATIONS ACTION PATTERN [count=N] [room=BYTES]

   OPERATIONS  write, sync, open, joined by commas. "write" is write, writev, pwrite and pwritev,
               "sync" is fsync and fdatasync, "open" is open and openat.
   ACTION      the number of an error as errno=N, delay=MILLISECONDS, or hang: until the rule goes.
   PATTERN     as of a shell, for the path below the directory; a star matches slashes, too.
   count       only so many calls of this process are struck, then the rule is over.
   room        so many bytes are still taken by writes, the last of them in part.

   The first rule that fits a call strikes it. Each strike is a line in CONTROL.log:
   "PID OPERATION ACTION PATH". */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, OPEN = 4 };
enum { FAIL, DELAY, HANG };
enum { RULES_MAX = 64, LOGGED_MAX = 200, PAUSE_MS = 10 };

struct rule {
    int operations, action, number, logged;
    long count, room;
    char pattern[512];
};

struct verdict {
    int action, number;
    long taken;
};

static struct rule rules[RULES_MAX];
static int rules_count;
static struct stat read_as;
static const char *directory, *control;
static size_t directory_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    directory = getenv("DANUBE_DISK_SHIM_DIR");
    control = getenv("DANUBE_DISK_SHIM_CONTROL");
    if (directory == NULL || control == NULL) directory = NULL;
    else directory_length = strlen(directory);
}

static void parse_line(char *line) {
    struct rule *rule = &rules[rules_count];
    char *rest = NULL, *word;
    memset(rule, 0, sizeof *rule);
    rule->count = rule->room = -1;
    char *operations = strtok_r(line, " ", &rest), *action = strtok_r(NULL, " ", &rest);
    char *pattern = strtok_r(NULL, " ", &rest);
    if (pattern == NULL) return;
    if (strstr(operations, "write")) rule->operations |= WRITE;
    if (strstr(operations, "sync")) rule->operations |= SYNC;
    if (strstr(operations, "open")) rule->operations |= OPEN;
    if (strcmp(action, "hang") == 0) rule->action = HANG;
    else if (sscanf(action, "delay=%d", &rule->number) == 1) rule->action = DELAY;
    else if (sscanf(action, "errno=%d", &rule->number) == 1) rule->action = FAIL;
    else return;
    snprintf(rule->pattern, sizeof rule->pattern, "%s", pattern);
    while ((word = strtok_r(NULL, " ", &rest)) != NULL) {
        sscanf(word, "count=%ld", &rule->count);
        sscanf(word, "room=%ld", &rule->room);
    }
    rules_count++;
}

/* By system calls of its own: it must not come by here again. */
static void read_rules(void) {
    static char text[RULES_MAX * 600];
    char *rest = NULL, *line;
    struct stat now;
    if (stat(control, &now) != 0) {
        rules_count = 0;
        memset(&read_as, 0, sizeof read_as);
        return;
    }
    if (now.st_ino == read_as.st_ino && now.st_mtim.tv_sec == read_as.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec && now.st_size == read_as.st_size)
        return;
    read_as = now;
    rules_count = 0;
    int descriptor = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0);
    if (descriptor < 0) return;
    ssize_t length = syscall(SYS_read, descriptor, text, sizeof text - 1);
    syscall(SYS_close, descriptor);
    if (length <= 0) return;
    text[length] = 0;
    for (line = strtok_r(text, "\n", &rest); line != NULL && rules_count < RULES_MAX;
         line = strtok_r(NULL, "\n", &rest))
        parse_line(line);
}

static void tell(struct rule *rule, int operation, const char *path) {
    char line[PATH_MAX + 64], name[PATH_MAX];
    static const char *const names[] = {"", "write", "sync", "", "open"};
    static const char *const actions[] = {"fail", "delay", "hang"};
    if (rule->logged++ >= LOGGED_MAX) return;
    snprintf(name, sizeof name, "%s.log", control);
    int length = snprintf(line, sizeof line, "%d %s %s %s\n", (int)getpid(), names[operation],
                          actions[rule->action], path);
    int descriptor = syscall(SYS_openat, AT_FDCWD, name,
                             O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) return;
    if (syscall(SYS_write, descriptor, line, length) != length) rule->logged = LOGGED_MAX;
    syscall(SYS_close, descriptor);
}

static struct rule *rule_for(int operation, const char *path) {
    for (int each = 0; each < rules_count; each++) {
        struct rule *rule = &rules[each];
        if ((rule->operations & operation) && rule->count != 0 &&
            fnmatch(rule->pattern, path, 0) == 0)
            return rule;
    }
    return NULL;
}

/* Decide about one call under the lock; `told` says that it was decided before. */
static struct verdict decide(int operation, const char *path, long length, int told) {
    struct verdict verdict = {-1, 0, -1};
    pthread_mutex_lock(&lock);
    read_rules();
    struct rule *rule = rule_for(operation, path);
    if (rule != NULL && operation == WRITE && rule->room > 0) {
        /* There is room for some of it: that much is taken, and the next call finds none. */
        verdict.taken = length < rule->room ? length : rule->room;
        rule->room -= verdict.taken;
    } else if (rule != NULL) {
        if (!told) {
            tell(rule, operation, path);
            if (rule->count > 0 && rule->action != HANG) rule->count--;
        }
        verdict.action = rule->action;
        verdict.number = rule->number;
    }
    pthread_mutex_unlock(&lock);
    return verdict;
}

static void pause_ms(int milliseconds) {
    struct timespec left = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* Strike a call: 0 to go on, -1 with errno to fail; `taken` is how much a write may write. */
static int strike(int operation, const char *path, long length, long *taken) {
    int told = 0;
    if (directory == NULL || strncmp(path, directory, directory_length) != 0 ||
        path[directory_length] != '/')
        return 0;
    path += directory_length + 1;
    for (;;) {
        struct verdict verdict = decide(operation, path, length, told);
        if (verdict.taken >= 0 && taken != NULL) *taken = verdict.taken;
        switch (verdict.action) {
        case FAIL: errno = verdict.number; return -1;
        case DELAY: pause_ms(verdict.number); return 0;
        case HANG: told = 1; pause_ms(PAUSE_MS); continue;
        default: return 0;
        }
    }
}

static int strike_descriptor(int operation, int descriptor, long length, long *taken) {
    char name[64], path[PATH_MAX];
    if (directory == NULL) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(name, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return strike(operation, path, length, taken);
}

/* A path as it was given may be relative: the directory it lies in says where it is. */
static int strike_path(int at, const char *given) {
    char path[PATH_MAX], place[PATH_MAX], name[64];
    if (directory == NULL) return 0;
    if (given[0] == '/') return strike(OPEN, given, 0, NULL);
    snprintf(name, sizeof name, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
    ssize_t size = readlink(name, place, sizeof place - 1);
    if (size <= 0) return 0;
    place[size] = 0;
    if (snprintf(path, sizeof path, "%s/%s", place, given) >= (int)sizeof path) return 0;
    return strike(OPEN, path, 0, NULL);
}

#define REAL(name) ({ \
    static __typeof__(&name) real; \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    real; })

static long length_of(const struct iovec *parts, int count) {
    long length = 0;
    for (int each = 0; each < count; each++) length += parts[each].iov_len;
    return length;
}

/* How many whole parts fit into so many bytes; at least a cut first one is written. */
static int parts_within(const struct iovec *parts, int count, long taken, struct iovec *cut) {
    int whole = 0;
    while (whole < count && (long)parts[whole].iov_len <= taken) taken -= parts[whole++].iov_len;
    if (whole == 0) {
        *cut = parts[0];
        cut->iov_len = taken;
    }
    return whole;
}

ssize_t write(int descriptor, const void *bytes, size_t length) {
    long taken = length;
    if (strike_descriptor(WRITE, descriptor, length, &taken) != 0) return -1;
    return REAL(write)(descriptor, bytes, taken);
}

#define PWRITE(name, offset_type) \
    ssize_t name(int descriptor, const void *bytes, size_t length, offset_type offset) { \
        long taken = length; \
        if (strike_descriptor(WRITE, descriptor, length, &taken) != 0) return -1; \
        return REAL(name)(descriptor, bytes, taken, offset); \
    }

PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define VECTOR(name, parameters, arguments) \
    ssize_t name parameters { \
        long length = length_of(parts, count), taken = length; \
        struct iovec cut; \
        if (strike_descriptor(WRITE, descriptor, length, &taken) != 0) return -1; \
        if (taken < length) { \
            int whole = parts_within(parts, count, taken, &cut); \
            if (whole == 0) parts = &cut; \
            count = whole == 0 ? 1 : whole; \
        } \
        return REAL(name) arguments; \
    }

VECTOR(writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count))
VECTOR(pwritev, (int descriptor, const struct iovec *parts, int count, off_t offset),
       (descriptor, parts, count, offset))
VECTOR(pwritev64, (int descriptor, const struct iovec *parts, int count, off64_t offset),
       (descriptor, parts, count, offset))
VECTOR(pwritev2, (int descriptor, const struct iovec *parts, int count, off_t offset, int flags),
       (descriptor, parts, count, offset, flags))

int fsync(int descriptor) {
    if (strike_descriptor(SYNC, descriptor, 0, NULL) != 0) return -1;
    return REAL(fsync)(descriptor);
}

int fdatasync(int descriptor) {
    if (strike_descriptor(SYNC, descriptor, 0, NULL) != 0) return -1;
    return REAL(fdatasync)(descriptor);
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        if (strike_path(AT_FDCWD, path) != 0) return -1; \
        return REAL(name)(path, flags, mode); \
    }

OPENING(open)
OPENING(open64)

#define OPENING_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        if (strike_path(at, path) != 0) return -1; \
        return REAL(name)(at, path, flags, mode); \
    }

OPENING_AT(openat)
OPENING_AT(openat64)
