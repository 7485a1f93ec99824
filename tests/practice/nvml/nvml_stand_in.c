/* A stand-in for libnvidia-ml.so.1, for machines without a GPU.
 *
 * Its GPUs come from the folder that PRACTICE_GPUS names (tests/practice/gpus.py writes it):
 *   gpus      one line a GPU: UUID total_bytes reserved_bytes name
 *   pid.PID   start ticks of the process, then lines "index bytes": what it holds, counted only while it lives
 *   error     a number: every call returns it as its NVML return code
 *   hang      while it exists, calls do not return
 * Nothing is kept between calls but the count of initialisations, so calls from any thread are safe and changes show at once.
 * Function names, structures and return codes: NVIDIA's nvml.h as nvidia-ml-py 13 calls them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 64
#define PATH_BYTES 4096

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    UNKNOWN = 999
};

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { char uuid[96]; unsigned long long total, reserved; char name[96]; } gpu_t;

static atomic_int initialised;
static char handles[MAX_GPUS]; /* a device handle is the address of its place here */

static const char *folder(void) {
    const char *name = getenv("PRACTICE_GPUS");
    return name && *name ? name : NULL;
}

/* Meets `hang` and `error`; SUCCESS when the driver is well. */
static int driver(void) {
    char path[PATH_BYTES];
    const char *root = folder();
    if (!root) return DRIVER_NOT_LOADED;
    snprintf(path, sizeof path, "%s/hang", root);
    while (access(path, F_OK) == 0) usleep(10000);
    snprintf(path, sizeof path, "%s/error", root);
    FILE *file = fopen(path, "r");
    if (!file) return SUCCESS;
    int code = UNKNOWN;
    if (fscanf(file, "%d", &code) != 1) code = UNKNOWN;
    fclose(file);
    return code;
}

static int ready(void) {
    if (atomic_load(&initialised) <= 0) return UNINITIALIZED;
    return driver();
}

/* Reads the GPUs; returns how many there are. */
static int read_gpus(gpu_t *gpus) {
    char path[PATH_BYTES], line[512];
    const char *root = folder();
    if (!root) return 0;
    snprintf(path, sizeof path, "%s/gpus", root);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int count = 0;
    while (count < MAX_GPUS && fgets(line, sizeof line, file)) {
        gpu_t *gpu = &gpus[count];
        memset(gpu, 0, sizeof *gpu);
        if (sscanf(line, "%95s %llu %llu %95[^\n]", gpu->uuid, &gpu->total, &gpu->reserved, gpu->name) >= 3) count++;
    }
    fclose(file);
    return count;
}

static int device(void *handle, gpu_t *gpus) {
    long index = (char *)handle - handles;
    int count = read_gpus(gpus);
    return index >= 0 && index < count ? (int)index : -1;
}

/* Whether the process `pid` that started at `ticks` lives; a zombie has given its memory back. */
static int lives(unsigned int pid, unsigned long long ticks) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    char *rest = strrchr(text, ')');
    if (!rest || !rest[1]) return 0;
    char state = rest[2];
    unsigned long long start = 0;
    int field = 3;
    for (char *word = rest + 2; word && field < 22; field++) {
        word = strchr(word, ' ');
        if (word) word++;
        if (word && field + 1 == 22) start = strtoull(word, NULL, 10);
    }
    return state != 'Z' && state != 'X' && start == ticks;
}

/* The living processes on a GPU; returns their number, and adds up what they hold. */
static unsigned int holders(int gpu, process_t *found, unsigned int room, unsigned long long *sum) {
    char path[PATH_BYTES];
    const char *root = folder();
    DIR *entries = root ? opendir(root) : NULL;
    unsigned int count = 0;
    *sum = 0;
    if (!entries) return 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        unsigned int pid = 0;
        if (sscanf(entry->d_name, "pid.%u", &pid) != 1) continue;
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        unsigned long long ticks = 0, bytes = 0;
        int index = -1;
        if (fscanf(file, "%llu", &ticks) == 1 && lives(pid, ticks)) {
            while (fscanf(file, "%d %llu", &index, &bytes) == 2) {
                if (index != gpu || !bytes) continue;
                *sum += bytes;
                if (found && count < room) found[count] = (process_t){pid, bytes, 0xFFFFFFFFu, 0xFFFFFFFFu};
                count++;
            }
        }
        fclose(file);
    }
    closedir(entries);
    return count;
}

EXPORT int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    int code = driver();
    if (code == SUCCESS) atomic_fetch_add(&initialised, 1);
    return code;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    if (atomic_fetch_sub(&initialised, 1) > 0) return SUCCESS;
    atomic_store(&initialised, 0);
    return UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "The operation was successful";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NO_PERMISSION: return "Insufficient Permissions";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case TIMEOUT: return "Timeout";
        case GPU_IS_LOST: return "GPU is lost";
        default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    int code = ready();
    if (code == SUCCESS) snprintf(text, length, "580.95.05");
    return code;
}

EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned int length) {
    snprintf(text, length, "13.580.95.05");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count) {
    gpu_t gpus[MAX_GPUS];
    int code = ready();
    if (code == SUCCESS) *count = (unsigned int)read_gpus(gpus);
    return code;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    gpu_t gpus[MAX_GPUS];
    int code = ready();
    if (code != SUCCESS) return code;
    if (index >= (unsigned int)read_gpus(gpus)) return INVALID_ARGUMENT;
    *handle = &handles[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    gpu_t gpus[MAX_GPUS];
    int code = ready();
    if (code != SUCCESS) return code;
    int count = read_gpus(gpus);
    for (int index = 0; index < count; index++) {
        if (strcmp(gpus[index].uuid, uuid) == 0) {
            *handle = &handles[index];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* Runs the common checks of a call on one device and leaves its index in `index`. */
#define ON_DEVICE(handle)                    \
    gpu_t gpus[MAX_GPUS];                    \
    int code = ready();                      \
    if (code != SUCCESS) return code;        \
    int index = device(handle, gpus);        \
    if (index < 0) return INVALID_ARGUMENT

EXPORT int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) {
    ON_DEVICE(handle);
    snprintf(text, length, "%s", gpus[index].uuid);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(void *handle, char *text, unsigned int length) {
    ON_DEVICE(handle);
    snprintf(text, length, "%s", gpus[index].name);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetIndex(void *handle, unsigned int *number) {
    ON_DEVICE(handle);
    *number = (unsigned int)index;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    unsigned long long held;
    ON_DEVICE(handle);
    holders(index, NULL, 0, &held);
    memory->total = gpus[index].total;
    memory->used = gpus[index].reserved + held;
    if (memory->used > memory->total) memory->used = memory->total;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *memory) {
    memory_t plain;
    ON_DEVICE(handle);
    (void)index;
    code = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (code != SUCCESS) return code;
    memory->total = plain.total;
    memory->reserved = gpus[index].reserved;
    memory->free = plain.free;
    memory->used = plain.used > memory->reserved ? plain.used - memory->reserved : 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, process_t *processes) {
    unsigned long long held;
    ON_DEVICE(handle);
    unsigned int room = *count;
    *count = holders(index, processes, processes ? room : 0, &held);
    if (*count == 0) return SUCCESS;
    return processes && *count <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned int *count, process_t *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}

EXPORT int nvmlDeviceGetUtilizationRates(void *handle, utilization_t *rates) {
    unsigned long long held;
    ON_DEVICE(handle);
    rates->gpu = holders(index, NULL, 0, &held) ? 87 : 0;
    rates->memory = (unsigned int)(held * 100 / (gpus[index].total ? gpus[index].total : 1));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *degrees) {
    (void)sensor;
    ON_DEVICE(handle);
    *degrees = 41 + (unsigned int)index;
    return SUCCESS;
}
