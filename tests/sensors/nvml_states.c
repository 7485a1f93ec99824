/* NVML with GPUs that are lost or split by MIG and with Xid events, which the practice GPUs know nothing of.
 * The file that NVML_STATES names has one line a GPU: UUID used_bytes state, where state is ok, lost, gone, mig or the
 * number of the NVML error that reading its memory gives.
 * "gone": the GPU is not enumerated any more, so that those behind it get other indices.
 * The file that NVML_XIDS names has one line an event, UUID xid; without that name the driver has no events.
 * PCI addresses: the GPU whose UUID ends in the letter a is on bus 0x3a, b on 0x3b and so on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char uuid[96], state[16]; unsigned long long used; } gpu_t;
static gpu_t gpus[16];

static int load(void) {
    int count = 0;
    FILE *file = fopen(getenv("NVML_STATES"), "r");
    while (file && count < 16 && fscanf(file, "%95s %llu %15s", gpus[count].uuid, &gpus[count].used, gpus[count].state) == 3)
        if (strcmp(gpus[count].state, "gone")) count++;
    if (file) fclose(file);
    return count;
}

static gpu_t *state_of(void *handle) {
    int count = load();
    for (int i = 0; i < count; i++)
        if (!strcmp(gpus[i].uuid, handle)) return &gpus[i];
    return NULL;
}

int nvmlInitWithFlags(unsigned int flags) { return (int)(flags & 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 999 ? "Unknown Error" : code == 6 ? "Not Found" : "some error";
}
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = (unsigned)load(); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    if (index >= (unsigned)load()) return 2;
    *handle = strdup(gpus[index].uuid);
    return strcmp(gpus[index].state, "lost") ? 0 : 15;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) {
    snprintf(text, length, "%s", (char *)handle);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    gpu_t *gpu = state_of(handle);
    if (!gpu || !strcmp(gpu->state, "lost")) return 15;
    if (atoi(gpu->state)) return atoi(gpu->state);
    memory[0] = 80ull << 30, memory[1] = memory[0] - gpu->used, memory[2] = gpu->used;
    return 0;
}

/* In milliwatts, the same of each; a driver that does not measure says that it is not supported. */
int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
    if (!handle || !getenv("NVML_POWER")) return 3;
    *milliwatts = (unsigned)atoi(getenv("NVML_POWER"));
    return 0;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending) {
    gpu_t *gpu = state_of(handle);
    if (!gpu) return 15;
    *current = *pending = !strcmp(gpu->state, "mig");
    return 0;
}

typedef struct { char legacy[16]; unsigned int domain, bus, device, ids[2]; char bus_id[32]; } pci_t;

int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x30 + (unsigned)(((char *)handle)[strlen(handle) - 1] - 'a') + 10;
    return 0;
}

/* Events, of the registered GPUs only; what was in the file when a set was made is not told. */
typedef struct { void *device; unsigned long long type, data; unsigned int instances[2]; } event_t;
static void *registered[16];
static int count_registered;
static long offset;

int nvmlEventSetCreate(void **set) {
    if (!getenv("NVML_XIDS")) return 3;
    FILE *file = fopen(getenv("NVML_XIDS"), "r");
    count_registered = 0, offset = 0;
    if (file) fseek(file, 0, SEEK_END), offset = ftell(file), fclose(file);
    *set = registered;
    return 0;
}

int nvmlEventSetFree(void *set) { return set == registered ? 0 : 2; }

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
    *types = 0x8 | 0x2;
    return handle ? 0 : 2;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    if (types != 0x8 || set != registered) return 2;
    registered[count_registered++] = handle;
    return 0;
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned int timeout_ms) {
    char uuid[96];
    int xid = 0, result = 10;
    FILE *file = set && timeout_ms < 1000 ? fopen(getenv("NVML_XIDS"), "r") : NULL;
    if (!file) return 10;
    fseek(file, offset, SEEK_SET);
    while (result == 10 && fscanf(file, "%95s %d ", uuid, &xid) == 2) {
        offset = ftell(file);
        for (int i = 0; i < count_registered; i++)
            if (!strcmp(registered[i], uuid)) {
                memset(event, 0, sizeof *event);
                event->device = registered[i], event->type = 0x8, event->data = (unsigned)xid;
                result = 0;
            }
    }
    fclose(file);
    return result;
}

/* Clocks: the file that NVML_CLOCKS names has one line a GPU, UUID reasons temperature clock highest; a GPU without a
 * line, or a driver without the file, does not support them (3). Built with OLD_NAMES the driver is one before 535. */
typedef struct { unsigned reasons, temperature, clock, highest; } clocks_t;

static int clocks_of(void *handle, clocks_t *found) {
    char uuid[96];
    FILE *file = getenv("NVML_CLOCKS") ? fopen(getenv("NVML_CLOCKS"), "r") : NULL;
    int result = 3;
    while (file && result &&
           fscanf(file, "%95s %x %u %u %u", uuid, &found->reasons, &found->temperature, &found->clock, &found->highest) == 5)
        if (!strcmp(uuid, handle)) result = 0;
    if (file) fclose(file);
    return result;
}

#ifdef OLD_NAMES
#define REASONS nvmlDeviceGetCurrentClocksThrottleReasons
#else
#define REASONS nvmlDeviceGetCurrentClocksEventReasons
#endif

int REASONS(void *handle, unsigned long long *reasons) {
    clocks_t found;
    int result = clocks_of(handle, &found);
    if (!result) *reasons = found.reasons;
    return result;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) {
    clocks_t found;
    int result = clocks_of(handle, &found);
    if (!result && !found.temperature) result = 3;
    if (!result) *degrees = found.temperature;
    return sensor ? 2 : result;
}

int nvmlDeviceGetClockInfo(void *handle, int domain, unsigned *clock) {
    clocks_t found;
    int result = clocks_of(handle, &found);
    if (!result && !found.clock) result = 3;
    if (!result) *clock = found.clock;
    return domain == 1 ? result : 2;
}

int nvmlDeviceGetMaxClockInfo(void *handle, int domain, unsigned *clock) {
    clocks_t found;
    int result = clocks_of(handle, &found);
    if (!result) *clock = found.highest;
    return domain == 1 ? result : 2;
}
