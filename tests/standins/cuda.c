/* A stand-in for libcuda.so.1: host memory is device memory. Asynchronous copies are carried out only when somebody
 * waits for them, so that memory that is used again too early gives wrong bytes. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "standin.h"

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_CONTEXT = 201,
       BAD_HANDLE = 400, REGISTERED = 712, NOT_REGISTERED = 713, NOT_SUPPORTED = 801 };
enum { ALLOC, HOST, REGISTRATION, STREAM, EVENT, OPENED, CONTEXT, KINDS };
static const char *const kinds[KINDS] = {"allocations", "host allocations", "registrations", "streams", "events",
                                         "opened handles", "contexts"};

struct thing { int kind; uintptr_t at; size_t bytes; int fd; char name[64]; struct thing *next; };
struct copy { int stream; long number; void *to; const void *from; size_t bytes; struct copy *next; };
struct event { int stream; long number; };

static struct thing *things;
static struct copy *copies;
static long copy_number, serial;
static int initialized;
static __thread uintptr_t contexts[1 << 16];
static __thread int depth;

#define BEGIN(name)                                        \
    pthread_mutex_lock(&lock);                             \
    int result = scripted(name);                           \
    const char *const function = name;                     \
    if (!result && !initialized && strcmp(name, "cuInit")) result = NOT_INITIALIZED
#define NEEDS_CONTEXT \
    if (!result && !contexts[depth]) result = BAD_CONTEXT
#define END                                                \
    if (!result) note("%s", function);                     \
    pthread_mutex_unlock(&lock);                           \
    return result

static struct thing *add(int kind, uintptr_t at, size_t bytes) {
    struct thing *thing = calloc(1, sizeof *thing);
    *thing = (struct thing){.kind = kind, .at = at, .bytes = bytes, .next = things};
    return things = thing;
}

static struct thing *find(int kind, uintptr_t at, size_t bytes) {
    struct thing *thing = things;
    while (thing && !(thing->kind == kind && at >= thing->at && at + bytes <= thing->at + thing->bytes)) thing = thing->next;
    return thing;
}

static int removed(int kind, uintptr_t at, struct thing *copy) {
    for (struct thing **link = &things; *link; link = &(*link)->next) {
        struct thing *thing = *link;
        if (thing->kind == kind && thing->at == at) {
            *copy = *thing;
            *link = thing->next;
            free(thing);
            return 1;
        }
    }
    return 0;
}

static size_t sum(int kind, size_t *number) {
    size_t bytes = 0;
    *number = 0;
    for (struct thing *thing = things; thing; thing = thing->next)
        if (thing->kind == kind) bytes += thing->bytes, ++*number;
    return bytes;
}

static int is_device(uintptr_t at, size_t bytes) { return find(ALLOC, at, bytes) || find(OPENED, at, bytes); }
static int is_pinned(uintptr_t at, size_t bytes) { return find(HOST, at, bytes) || find(REGISTRATION, at, bytes); }

/* Carries out what `stream` (0: any) was given up to `number`. */
static void carry_out(int stream, long number) {
    for (struct copy **link = &copies; *link;) {
        struct copy *copy = *link;
        if ((!stream || copy->stream == stream) && copy->number <= number) {
            memcpy(copy->to, copy->from, copy->bytes);
            *link = copy->next;
            free(copy);
        } else {
            link = &copy->next;
        }
    }
}

static void enqueue(uintptr_t stream, void *to, const void *from, size_t bytes) {
    struct copy *copy = calloc(1, sizeof *copy), **link = &copies;
    *copy = (struct copy){(int)stream, ++copy_number, to, from, bytes, NULL};
    while (*link) link = &(*link)->next;
    *link = copy;
}

/* For tests in the same process. What was left behind stays allocated and is forgotten. */
void standin_forget_things(void) { pthread_mutex_lock(&lock); things = NULL; copies = NULL; pthread_mutex_unlock(&lock); }
long standin_live(int kind) { size_t count; pthread_mutex_lock(&lock); sum(kind, &count); pthread_mutex_unlock(&lock); return (long)count; }
void standin_forget_calls(void) { pthread_mutex_lock(&lock); memset(counted, 0, sizeof counted); pthread_mutex_unlock(&lock); }

__attribute__((destructor)) static void at_exit(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        size_t count;
        sum(kind, &count);
        if (count) note("leaked %zu %s", count, kinds[kind]);
    }
}

int cuInit(unsigned flags) {
    BEGIN("cuInit");
    if (!result && flags) result = INVALID;
    if (!result && number("devices", 1) == 0) result = NO_DEVICE;
    if (!result) initialized = 1;
    END;
}

int cuDriverGetVersion(int *version) {
    pthread_mutex_lock(&lock);
    const char *const function = "cuDriverGetVersion";
    int result = scripted(function);
    if (!result) *version = (int)number("version", 12080);
    END;
}

int cuGetErrorName(int error, const char **name) {
    *name = error == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == INVALID ? "CUDA_ERROR_INVALID_VALUE"
          : error == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : error == 999 ? "CUDA_ERROR_UNKNOWN" : NULL;
    return *name ? OK : INVALID;
}

int cuDeviceGetCount(int *count) { BEGIN("cuDeviceGetCount"); if (!result) *count = (int)number("devices", 1); END; }

int cuDeviceGet(int *device, int ordinal) {
    BEGIN("cuDeviceGet");
    if (!result && (ordinal < 0 || ordinal >= number("devices", 1))) result = BAD_DEVICE;
    if (!result) *device = ordinal;
    END;
}

int cuDeviceGetName(char *name, int size, int device) {
    BEGIN("cuDeviceGetName");
    if (!result) snprintf(name, size, "Stand-in %d", device);
    END;
}

int cuDeviceGetPCIBusId(char *name, int size, int device) {
    BEGIN("cuDeviceGetPCIBusId");
    if (!result) snprintf(name, size, "0000:%02X:00.0", device + 1);
    END;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    BEGIN("cuDeviceTotalMem_v2");
    if (!result) *bytes = (size_t)number("vram", 1L << 30);
    END;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    BEGIN("cuDeviceGetAttribute");
    if (!result) *value = attribute == 113 ? (int)number("read_only", 1) : attribute == 99 ? 1 : 0;
    END;
}

int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    if (!result) {
        *context = 0xc0de00 + device;
        add(CONTEXT, *context, 1);
    }
    END;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    struct thing gone;
    BEGIN("cuDevicePrimaryCtxRelease_v2");
    if (!result && !removed(CONTEXT, 0xc0de00 + device, &gone)) result = BAD_CONTEXT;
    END;
}

int cuCtxPushCurrent_v2(uintptr_t context) {
    BEGIN("cuCtxPushCurrent_v2");
    if (!result && !find(CONTEXT, context, 1)) result = BAD_CONTEXT;
    if (!result && depth == (1 << 16) - 1) result = INVALID;
    if (!result) contexts[++depth] = context;
    END;
}

int cuCtxPopCurrent_v2(uintptr_t *context) {
    BEGIN("cuCtxPopCurrent_v2");
    if (!result && !depth) result = BAD_CONTEXT;
    if (!result) *context = contexts[depth--];
    END;
}

int cuMemGetInfo_v2(size_t *unused, size_t *total) {
    size_t count;
    BEGIN("cuMemGetInfo_v2");
    NEEDS_CONTEXT;
    if (!result) *total = (size_t)number("vram", 1L << 30), *unused = *total - sum(ALLOC, &count);
    END;
}

int cuMemAlloc_v2(uintptr_t *at, size_t bytes) {
    size_t count;
    BEGIN("cuMemAlloc_v2");
    NEEDS_CONTEXT;
    if (!result && !bytes) result = INVALID;
    if (!result && sum(ALLOC, &count) + bytes > (size_t)number("vram", 1L << 30)) result = NO_MEMORY;
    if (!result) {
        char name[64];
        /* A file that nothing is left of, however this process ends, and that others can open. */
        int fd = memfd_create("standin", MFD_CLOEXEC);
        void *memory = MAP_FAILED;
        if (fd >= 0 && !ftruncate(fd, (off_t)bytes)) memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)getpid(), fd);
        if (memory == MAP_FAILED) {
            if (fd >= 0) close(fd);
            result = NO_MEMORY;
        } else {
            struct thing *thing = add(ALLOC, *at = (uintptr_t)memory, bytes);
            thing->fd = fd;
            strcpy(thing->name, name);
        }
    }
    END;
}

int cuMemFree_v2(uintptr_t at) {
    struct thing gone;
    BEGIN("cuMemFree_v2");
    NEEDS_CONTEXT;
    carry_out(0, copy_number);
    if (!result && !removed(ALLOC, at, &gone)) result = INVALID;
    if (!result) munmap((void *)at, gone.bytes), close(gone.fd);
    END;
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    (void)flags;
    BEGIN("cuMemHostAlloc");
    NEEDS_CONTEXT;
    if (!result && posix_memalign(at, 4096, bytes)) result = NO_MEMORY;
    if (!result) add(HOST, (uintptr_t)*at, bytes);
    END;
}

int cuMemFreeHost(void *at) {
    struct thing gone;
    BEGIN("cuMemFreeHost");
    NEEDS_CONTEXT;
    carry_out(0, copy_number);
    if (!result && !removed(HOST, (uintptr_t)at, &gone)) result = INVALID;
    if (!result) free(at);
    END;
}

/* Whether all of the range is mapped with the right `which` (an index of "rwxs"). */
static int allows(uintptr_t at, size_t bytes, int which) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[8];
    uintptr_t from, to, reached = at;
    while (maps && reached < at + bytes && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && from <= reached && reached < to)
            reached = rights[which] == "rwxs"[which] ? to : SIZE_MAX;
    if (maps) fclose(maps);
    return reached >= at + bytes && reached != SIZE_MAX;
}

int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    size_t count;
    BEGIN("cuMemHostRegister_v2");
    NEEDS_CONTEXT;
    if (!result && (!bytes || (uintptr_t)at % 4096)) result = INVALID;
    if (!result && flags & 8 && !number("read_only", 1)) result = NOT_SUPPORTED;
    if (!result && !allows((uintptr_t)at, bytes, flags & 8 ? 0 : 1)) result = INVALID;
    for (struct thing *thing = things; !result && thing; thing = thing->next)
        if (thing->kind == REGISTRATION && thing->at < (uintptr_t)at + bytes && (uintptr_t)at < thing->at + thing->bytes)
            result = REGISTERED;
    if (!result && sum(REGISTRATION, &count) + bytes > (size_t)number("register_bytes", 1L << 40)) result = NO_MEMORY;
    if (!result && count >= (size_t)number("register_number", 1L << 20)) result = NO_MEMORY;
    if (!result) {
        add(REGISTRATION, (uintptr_t)at, bytes);
        note("registered %zu flags %u", bytes, flags);
    }
    END;
}

int cuMemHostUnregister(void *at) {
    struct thing gone;
    BEGIN("cuMemHostUnregister");
    NEEDS_CONTEXT;
    carry_out(0, copy_number);
    if (!result && !removed(REGISTRATION, (uintptr_t)at, &gone)) result = NOT_REGISTERED;
    END;
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, uintptr_t stream) {
    BEGIN("cuMemcpyHtoDAsync_v2");
    NEEDS_CONTEXT;
    if (!result && (!is_device(to, bytes) || !find(STREAM, stream, 1))) result = INVALID;
    if (!result && is_pinned((uintptr_t)from, bytes)) {
        enqueue(stream, (void *)to, from, bytes);
    } else if (!result) {
        note("pageable %zu", bytes);
        memcpy((void *)to, from, bytes);
    }
    END;
}

int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t bytes) {
    BEGIN("cuMemcpyHtoD_v2");
    NEEDS_CONTEXT;
    if (!result && !is_device(to, bytes)) result = INVALID;
    if (!result) memcpy((void *)to, from, bytes);
    END;
}

int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t bytes) {
    BEGIN("cuMemcpyDtoH_v2");
    NEEDS_CONTEXT;
    if (!result && !is_device(from, bytes)) result = INVALID;
    if (!result) memcpy(to, (void *)from, bytes);
    END;
}

int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t stream) {
    BEGIN("cuMemcpyDtoDAsync_v2");
    NEEDS_CONTEXT;
    if (!result && (!is_device(to, bytes) || !is_device(from, bytes) || !find(STREAM, stream, 1))) result = INVALID;
    if (!result) enqueue(stream, (void *)to, (void *)from, bytes);
    END;
}

int cuStreamCreate(uintptr_t *stream, unsigned flags) {
    (void)flags;
    BEGIN("cuStreamCreate");
    NEEDS_CONTEXT;
    if (!result) *stream = (uintptr_t)++serial, add(STREAM, *stream, 1);
    END;
}

int cuStreamDestroy_v2(uintptr_t stream) {
    struct thing gone;
    BEGIN("cuStreamDestroy_v2");
    if (!result && !removed(STREAM, stream, &gone)) result = BAD_HANDLE;
    END;
}

int cuStreamSynchronize(uintptr_t stream) {
    BEGIN("cuStreamSynchronize");
    if (!result && !find(STREAM, stream, 1)) result = BAD_HANDLE;
    if (!result) carry_out((int)stream, copy_number);
    END;
}

int cuEventCreate(struct event **event, unsigned flags) {
    (void)flags;
    BEGIN("cuEventCreate");
    NEEDS_CONTEXT;
    if (!result) *event = calloc(1, sizeof **event), add(EVENT, (uintptr_t)*event, 1);
    END;
}

int cuEventDestroy_v2(struct event *event) {
    struct thing gone;
    BEGIN("cuEventDestroy_v2");
    if (!result && !removed(EVENT, (uintptr_t)event, &gone)) result = BAD_HANDLE;
    if (!result) free(event);
    END;
}

int cuEventRecord(struct event *event, uintptr_t stream) {
    BEGIN("cuEventRecord");
    if (!result && (!find(EVENT, (uintptr_t)event, 1) || !find(STREAM, stream, 1))) result = BAD_HANDLE;
    if (!result) *event = (struct event){(int)stream, copy_number};
    END;
}

int cuEventSynchronize(struct event *event) {
    BEGIN("cuEventSynchronize");
    if (!result && !find(EVENT, (uintptr_t)event, 1)) result = BAD_HANDLE;
    if (!result && event->stream) carry_out(event->stream, event->number);
    END;
}

typedef struct { char text[64]; } ipc_handle;

int cuIpcGetMemHandle(ipc_handle *handle, uintptr_t at) {
    BEGIN("cuIpcGetMemHandle");
    NEEDS_CONTEXT;
    struct thing *thing = find(ALLOC, at, 1);
    if (!result && !thing) result = INVALID;
    if (!result) memcpy(handle->text, thing->name, sizeof handle->text);
    END;
}

int cuIpcOpenMemHandle_v2(uintptr_t *at, ipc_handle handle, unsigned flags) {
    struct stat found;
    BEGIN("cuIpcOpenMemHandle_v2");
    NEEDS_CONTEXT;
    handle.text[63] = 0;
    int is_ours = !strncmp(handle.text, "/proc/", 6);
    int fd = !result && flags == 1 && is_ours ? open(handle.text, O_RDWR | O_CLOEXEC) : -1;
    if (!result && (fd < 0 || fstat(fd, &found))) result = BAD_HANDLE;
    if (!result) {
        void *memory = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED) result = NO_MEMORY;
        else *at = (uintptr_t)memory, add(OPENED, *at, (size_t)found.st_size);
    }
    if (fd >= 0) close(fd);
    END;
}

int cuIpcCloseMemHandle(uintptr_t at) {
    struct thing gone;
    BEGIN("cuIpcCloseMemHandle");
    carry_out(0, copy_number);
    if (!result && !removed(OPENED, at, &gone)) result = BAD_HANDLE;
    if (!result) munmap((void *)at, gone.bytes);
    END;
}
