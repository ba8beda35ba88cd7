/* A libnvidia-ml.so.1 without GPUs. NVIDIA's own binding loads it; every call reads the file named by FAKE_NVML_FILE:
 *
 *   gpu INDEX UUID USED_MIB UTILIZATION [mig]
 *   process INDEX compute|graphics|mps PID MIB|- [SM_PERCENT]     -: the driver does not say
 *   error FUNCTION CODE                                           this function fails with this code
 *
 * Structures as in nvml.h of driver 510 and newer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };
#define MIB (1024ULL * 1024ULL)
#define RESERVED (450ULL * MIB)
#define TOTAL (40960ULL * MIB)
#define MOST 64

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } process_t;
typedef struct { u32 pid; u64 time; u32 sm, memory, encoder, decoder; } sample_t;
typedef struct { char uuid[96]; u64 used; u32 utilization; int mig; } gpu_t;

static FILE *state(void) {
    const char *path = getenv("FAKE_NVML_FILE");
    return path ? fopen(path, "r") : NULL;
}

/* The error that the file asks for. */
static int failure(const char *function) {
    char line[256], name[128];
    int code, found = SUCCESS;
    FILE *file = state();
    if (!file) return UNKNOWN;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "error %127s %d", name, &code) == 2 && !strcmp(name, function)) found = code;
    fclose(file);
    return found;
}

static u32 gpus(gpu_t *out) {
    char line[256], mig[8];
    u32 index, count = 0, utilization;
    u64 used;
    gpu_t gpu;
    FILE *file = state();
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "gpu %u %95s %llu %u %7s", &index, gpu.uuid, &used, &utilization, mig);
        if (fields < 4 || index >= MOST) continue;
        gpu.used = used * MIB;
        gpu.utilization = utilization;
        gpu.mig = fields == 5;
        out[index] = gpu;
        count = index + 1 > count ? index + 1 : count;
    }
    fclose(file);
    return count;
}

/* A handle is the GPU's index plus one, as a pointer. */
static u32 index_of(void *handle) { return (u32)((size_t)handle - 1); }

static int list(void *handle, const char *kind, u32 *size, process_t *out) {
    char line[256], of_kind[16], memory[32];
    u32 index, pid, count = 0;
    FILE *file = state();
    if (!file) return UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %u %15s %u %31s", &index, of_kind, &pid, memory) != 4) continue;
        if (index != index_of(handle) || strcmp(of_kind, kind)) continue;
        if (out && count < *size) {
            out[count].pid = pid;
            out[count].memory = memory[0] == '-' ? ~0ULL : strtoull(memory, NULL, 10) * MIB;
            out[count].gpu_instance = out[count].compute_instance = ~0U;
        }
        count++;
    }
    fclose(file);
    int fits = count <= *size;
    *size = count;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

#define LIST(function, kind) \
    int function(void *handle, u32 *size, process_t *out) { \
        int code = failure(#function); \
        return code ? code : list(handle, kind, size, out); \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

int nvmlInitWithFlags(u32 flags) { (void)flags; return failure("nvmlInitWithFlags"); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }

int nvmlDeviceGetCount_v2(u32 *count) {
    gpu_t found[MOST];
    int code = failure("nvmlDeviceGetCount_v2");
    if (!code) *count = gpus(found);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
    *handle = (void *)(size_t)(index + 1);
    return SUCCESS;
}

static int one(void *handle, gpu_t *out) {
    gpu_t found[MOST];
    memset(found, 0, sizeof found);
    if (index_of(handle) >= gpus(found)) return INVALID;
    *out = found[index_of(handle)];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *out, u32 size) {
    gpu_t gpu;
    int code = one(handle, &gpu);
    if (!code) snprintf(out, size, "%s", gpu.uuid);
    return code;
}

int nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending) {
    gpu_t gpu;
    int code = one(handle, &gpu);
    if (!code) *current = *pending = (u32)gpu.mig;
    return code;
}

typedef struct { u64 total, free, used; } memory_t;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2_t;

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *out) {
    gpu_t gpu;
    int code = one(handle, &gpu);
    if (!code) *out = (memory_t){TOTAL, TOTAL - RESERVED - gpu.used, gpu.used + RESERVED};
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *out) {
    gpu_t gpu;
    int code = failure("nvmlDeviceGetMemoryInfo_v2");
    if (!code) code = one(handle, &gpu);
    if (!code) *out = (memory_v2_t){out->version, TOTAL, RESERVED, TOTAL - RESERVED - gpu.used, gpu.used};
    return code;
}

typedef struct { u32 gpu, memory; } utilization_t;

int nvmlDeviceGetUtilizationRates(void *handle, utilization_t *out) {
    gpu_t gpu;
    int code = failure("nvmlDeviceGetUtilizationRates");
    if (!code) code = one(handle, &gpu);
    if (!code) *out = (utilization_t){gpu.utilization, 0};
    return code;
}

/* Two samples for each process, 10 % apart. As the real one, it pads its answer with empty entries. */
int nvmlDeviceGetProcessUtilization(void *handle, sample_t *out, u32 *size, u64 since) {
    char line[256], kind[16], memory[32];
    u32 index, pid, percent, count = 0;
    int code = failure("nvmlDeviceGetProcessUtilization");
    FILE *file = code ? NULL : state();
    if (!file) return code ? code : UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %u %15s %u %31s %u", &index, kind, &pid, memory, &percent) != 5) continue;
        if (index != index_of(handle)) continue;
        for (u32 half = 0; half < 2; half++, count++)
            if (out && count < *size) out[count] = (sample_t){pid, since + 1 + half, half ? percent + 5 : percent - 5, 0, 0, 0};
    }
    fclose(file);
    if (!count) return NOT_FOUND;
    if (out && count < *size) out[count] = (sample_t){0};
    int fits = count + 1 <= *size;
    *size = count + 1;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}
