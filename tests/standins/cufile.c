/* A stand-in for libcufile.so.0: it reads files into the memory that the stand-in for CUDA calls device memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "standin.h"

enum { CLOSED = 5001, PLATFORM = 5007, INVALID = 5022, IS_REGISTERED = 5023, NOT_REGISTERED = 5024, NO_HANDLE = 5027,
       HAS_HANDLE = 5028, FULL = 5037, NO_COMPAT_BATCH = 5049 };

typedef struct { int error, cuda; } status;
typedef struct { int kind; union { int fd; void *pointer; } handle; const void *operations; } description;
typedef struct {
    struct { unsigned major, minor; size_t poll, direct_size; unsigned status, control; } nvfs;
    unsigned features, cache_kib, buffer_kib, pinned_kib, batch, timeout;
} properties;
typedef struct {
    int mode;
    struct { void *base; off_t file_offset, offset; size_t bytes; } io;
    void *file;
    int operation;
    void *cookie;
} parameters;
typedef struct { void *cookie; int status; size_t result; } event;
struct batch { unsigned capacity, number; event events[256]; };

static int opened;
static int files[64];
static struct { uintptr_t at; size_t bytes; } buffers[64];
static int batches;

static int mode_is(const char *mode) {
    const char *from = NULL, *text = word("mode", &from);
    return text ? is_word(text, mode) : !strcmp(mode, "gds");
}

#define BEGIN(name)                                                       \
    pthread_mutex_lock(&lock);                                            \
    int result = scripted(name);                                          \
    const char *const function = name;                                    \
    if (!result && !opened && strcmp(name, "cuFileDriverOpen")) result = CLOSED
#define END                                                               \
    if (!result) note("%s", function);                                    \
    pthread_mutex_unlock(&lock);                                          \
    return (status){result, 0}

__attribute__((destructor)) static void at_exit(void) {
    for (int slot = 0; slot < 64; slot++) {
        if (files[slot]) note("leaked a cuFile handle");
        if (buffers[slot].at) note("leaked a cuFile buffer");
    }
    if (batches) note("leaked %d cuFile batches", batches);
    if (opened) note("leaked the cuFile driver");
}

status cuFileDriverOpen(void) { BEGIN("cuFileDriverOpen"); if (!result) opened = 1; END; }

static status driver_close(const char *name) { BEGIN(name); if (!result) opened = 0; END; }
status cuFileDriverClose(void) { return driver_close("cuFileDriverClose"); }
status cuFileDriverClose_v2(void) { return driver_close("cuFileDriverClose_v2"); }

status cuFileGetVersion(int *version) {
    pthread_mutex_lock(&lock);
    const char *const function = "cuFileGetVersion";
    int result = scripted(function);
    if (!result) *version = (int)number("cufile_version", 1130);
    END;
}

status cuFileDriverGetProperties(properties *found) {
    BEGIN("cuFileDriverGetProperties");
    if (!result) {
        memset(found, 0, sizeof *found);
        if (mode_is("gds")) found->nvfs.major = 2, found->nvfs.minor = 22, found->nvfs.status = 1 << 4;
        if (mode_is("p2pdma")) found->nvfs.status = 1 << 11, found->features |= 1 << 4;
        if (mode_is("compat")) found->nvfs.control = 1 << 1;
        if (number("batch", 1)) found->features |= 1 << 1;
        found->nvfs.direct_size = 16384;
        found->batch = 128;
        found->cache_kib = found->pinned_kib = 1 << 20;
    }
    END;
}

status cuFileHandleRegister(void **handle, description *file) {
    BEGIN("cuFileHandleRegister");
    if (!result && file->kind != 1) result = INVALID;
    for (int slot = 0; !result && slot < 64; slot++)
        if (files[slot] == file->handle.fd + 1) result = HAS_HANDLE;
    int slot = 0;
    while (slot < 63 && files[slot]) slot++;
    if (!result) files[slot] = file->handle.fd + 1, *handle = &files[slot];
    END;
}

void cuFileHandleDeregister(void *handle) {
    pthread_mutex_lock(&lock);
    *(int *)handle = 0;
    note("cuFileHandleDeregister");
    pthread_mutex_unlock(&lock);
}

status cuFileBufRegister(const void *at, size_t bytes, int flags) {
    BEGIN("cuFileBufRegister");
    int slot = 0;
    while (slot < 63 && buffers[slot].at) slot++;
    if (!result && flags) result = INVALID;
    if (!result) buffers[slot].at = (uintptr_t)at, buffers[slot].bytes = bytes;
    END;
}

status cuFileBufDeregister(const void *at) {
    BEGIN("cuFileBufDeregister");
    int slot = 0;
    while (slot < 64 && buffers[slot].at != (uintptr_t)at) slot++;
    if (!result && slot == 64) result = NOT_REGISTERED;
    if (!result) buffers[slot].at = 0;
    END;
}

static ssize_t read_now(void *handle, void *base, size_t bytes, off_t offset, off_t to) {
    int fd = *(int *)handle - 1;
    size_t most = (size_t)number("short", 1L << 30);
    note("read %zu at %ld%s", bytes, (long)offset, offset % 4096 ? " unaligned" : "");
    /* As the real one without a bounce buffer of its own: through the page cache where the file is open for that. */
    char *memory = (char *)base + to;
    size_t done = 0, wanted = bytes < most ? bytes : most;
    int flags = fcntl(fd, F_GETFL), direct = flags & O_DIRECT;
    if (direct) fcntl(fd, F_SETFL, flags & ~O_DIRECT);
    while (done < wanted) {
        ssize_t got = pread(fd, memory + done, wanted - done, offset + (off_t)done);
        if (got < 0) done = done ? done : (size_t)-errno;
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (direct) fcntl(fd, F_SETFL, flags);
    return (ssize_t)done;
}

ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t offset, off_t to) {
    pthread_mutex_lock(&lock);
    int result = scripted("cuFileRead");
    if (!result && !opened) result = CLOSED;
    if (!result && !*(int *)handle) result = NO_HANDLE;
    /* Small numbers are errors of the system, which travel as -1 and errno. */
    ssize_t done = result >= 5000 ? -result : -1;
    if (result && result < 5000) errno = result;
    if (!result) done = read_now(handle, base, bytes, offset, to), note("cuFileRead");
    pthread_mutex_unlock(&lock);
    return done;
}

status cuFileBatchIOSetUp(struct batch **batch, unsigned number_of) {
    BEGIN("cuFileBatchIOSetUp");
    if (!result && mode_is("compat")) result = NO_COMPAT_BATCH;
    if (!result && (!number_of || number_of > 128)) result = INVALID;
    if (!result) *batch = calloc(1, sizeof **batch), (*batch)->capacity = number_of, batches++;
    END;
}

status cuFileBatchIOSubmit(struct batch *batch, unsigned number_of, parameters *io, unsigned flags) {
    BEGIN("cuFileBatchIOSubmit");
    if (!result && (flags || batch->number + number_of > batch->capacity)) result = FULL;
    int in_flight = scripted("in_flight");
    for (unsigned i = 0; !result && i < number_of; i++) {
        ssize_t done = in_flight ? -1
            : read_now(io[i].file, io[i].io.base, io[i].io.bytes, io[i].io.file_offset, io[i].io.offset);
        /* CUFILE_COMPLETE, CUFILE_FAILED */
        batch->events[batch->number++] = (event){io[i].cookie, done < 0 ? 0x40 : 0x10, (size_t)done};
    }
    END;
}

status cuFileBatchIOGetStatus(struct batch *batch, unsigned least, unsigned *number_of, event *events, struct timespec *timeout) {
    (void)timeout;
    BEGIN("cuFileBatchIOGetStatus");
    if (!result && least > *number_of) result = INVALID;
    if (!result) {
        /* The last ones first: nobody promises an order. */
        unsigned give = *number_of < batch->number ? *number_of : batch->number;
        for (unsigned i = 0; i < give; i++) events[i] = batch->events[--batch->number];
        *number_of = give;
    }
    END;
}

void cuFileBatchIODestroy(struct batch *batch) {
    pthread_mutex_lock(&lock);
    free(batch);
    batches--;
    note("cuFileBatchIODestroy");
    pthread_mutex_unlock(&lock);
}
