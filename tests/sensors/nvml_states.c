/* NVML with GPUs that are lost or split by MIG, which the practice GPUs know nothing of.
 * The file that NVML_STATES names has one line a GPU: UUID used_bytes state, where state is ok, lost, gone or mig.
 * "gone": the GPU is not enumerated any more, so that those behind it get other indices. */
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
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "some error"; }
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
    memory[0] = 80ull << 30, memory[1] = memory[0] - gpu->used, memory[2] = gpu->used;
    return 0;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending) {
    gpu_t *gpu = state_of(handle);
    if (!gpu) return 15;
    *current = *pending = !strcmp(gpu->state, "mig");
    return 0;
}
