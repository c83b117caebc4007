/* A double of libnvidia-ml.so.1 that injects faults, for tests of the agent's GPU health.
 *
 * It answers from the text file named by NVML_DOUBLE, read again at every call, so that a test changes what the "driver"
 * says by writing to that file. A line is `DEVICE KEY VALUE...`; DEVICE is a number, `0.1` for a MIG instance of device 0,
 * or `*` for all. KEY is a function's name, with arguments in parentheses where they matter. The last line that fits wins.
 * VALUE `!15` returns that error code; without any line the answer is NVML_ERROR_NOT_SUPPORTED (3), which is never 0.
 *
 *   0 any !15                        every question about device 0 fails so (also the handle's)
 *   * any !9                         every question at all: the driver is gone
 *   * lost_after 100 15              from the 101st question about a device on
 *   * hang_ms nvmlDeviceGetUtilizationRates 500
 *   0 event 8 79 [instance]          an Xid event, delivered once in order to each event set
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int result;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10 };

typedef struct { char name[16]; } device;
typedef struct { u32 fieldId, scopeId; long long timestamp, latency; u32 valueType; result ret; u64 value; } field;
typedef struct { u64 total, free, used; } memory1;
typedef struct { u32 version; u64 total, reserved, free, used; } memory2;
typedef struct { u32 pid; u64 used; u32 gpuInstance, computeInstance; } process;
typedef struct { char legacy[16]; u32 domain, bus, dev, id, subsystem; char busId[32]; } pci;
typedef struct { device *dev; u64 type, data; u32 gpuInstance, computeInstance; } event;
typedef struct { int delivered; char watched[8][16]; int count; } event_set;
typedef struct { u32 version; unsigned char cluster[16]; result status; u32 clique, state, health; } fabric2;

static device devices[64];
static int device_count;
static long asked;

static device *device_named(const char *name) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].name, name)) return &devices[i];
    strcpy(devices[device_count].name, name);
    return &devices[device_count++];
}

static void wait_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* The value of the last line for (device or *) and (key or key without its arguments); 0 where there is none. */
static int find(const char *dev, const char *key, char *value, size_t size) {
    char line[1024], where[64], what[128];
    size_t bare = strcspn(key, "(");
    int found = 0, length;
    FILE *file = fopen(getenv("NVML_DOUBLE") ? getenv("NVML_DOUBLE") : "/dev/null", "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' || sscanf(line, "%63s %127s %n", where, what, &length) < 2) continue;
        if (strcmp(where, dev) && strcmp(where, "*")) continue;
        if (strcmp(what, key) && !(strlen(what) == bare && !strncmp(what, key, bare))) continue;
        snprintf(value, size, "%s", line + length);
        value[strcspn(value, "\n")] = 0;
        found = 1;
    }
    fclose(file);
    return found;
}

static result injected(const char *dev, const char *function) {
    char value[1024], slow[128];
    long after, ms, code;
    if (find("*", "hang_ms", value, sizeof value) && sscanf(value, "%127s %ld", slow, &ms) == 2 && !strcmp(slow, function))
        wait_ms(ms);
    if (find(dev, "any", value, sizeof value) && value[0] == '!') return atoi(value + 1);
    if (dev[0] != '*' && find("*", "lost_after", value, sizeof value) && sscanf(value, "%ld %ld", &after, &code) == 2 &&
        ++asked > after)
        return (result)code;
    return OK;
}

static result ask(device *dev, const char *key, char *value, size_t size) {
    char function[128];
    const char *name = dev ? dev->name : "*";
    snprintf(function, sizeof function, "%.*s", (int)strcspn(key, "("), key);
    result code = injected(name, function);
    if (code) return code;
    if (!find(name, key, value, size)) return NOT_SUPPORTED;
    return value[0] == '!' ? atoi(value + 1) : OK;
}

static result text(device *dev, const char *key, char *out, u32 size) {
    char value[1024];
    result code = ask(dev, key, value, sizeof value);
    if (!code) snprintf(out, size, "%s", value);
    return code;
}

static result numbers(device *dev, const char *key, int count, u64 *out) {
    char value[1024], *at = value;
    result code = ask(dev, key, value, sizeof value);
    for (int i = 0; !code && i < count; i++) out[i] = strtoull(at, &at, 0);
    return code;
}

static result number32(device *dev, const char *key, u32 *out) {
    u64 found;
    result code = numbers(dev, key, 1, &found);
    if (!code) *out = (u32)found;
    return code;
}

#define GET32(name) result name(device *d, u32 *out) { return number32(d, #name, out); }
#define GET32_ARG(name) \
    result name(device *d, u32 arg, u32 *out) { \
        char key[128]; \
        snprintf(key, sizeof key, #name "(%u)", arg); \
        return number32(d, key, out); \
    }
#define GET64(name) result name(device *d, u64 *out) { return numbers(d, #name, 1, out); }

GET32(nvmlDeviceGetPowerUsage)
GET32(nvmlDeviceGetEnforcedPowerLimit)
GET32(nvmlDeviceGetPowerManagementDefaultLimit)
GET32(nvmlDeviceGetCurrPcieLinkGeneration)
GET32(nvmlDeviceGetCurrPcieLinkWidth)
GET32(nvmlDeviceGetMaxPcieLinkGeneration)
GET32(nvmlDeviceGetMaxPcieLinkWidth)
GET32(nvmlDeviceGetPcieReplayCounter)
GET32(nvmlDeviceGetGpuInstanceId)
GET32_ARG(nvmlDeviceGetClockInfo)
GET32_ARG(nvmlDeviceGetMaxClockInfo)
GET32_ARG(nvmlDeviceGetTemperature)
GET32_ARG(nvmlDeviceGetTemperatureThreshold)
GET32_ARG(nvmlDeviceGetNvLinkState)
GET64(nvmlDeviceGetCurrentClocksEventReasons)
GET64(nvmlDeviceGetCurrentClocksThrottleReasons)
GET64(nvmlDeviceGetSupportedEventTypes)

static result opened(const char *function) {
    char value[1024];
    result code = injected("*", function);
    return code ? code : find("*", function, value, sizeof value) && value[0] == '!' ? atoi(value + 1) : OK;
}
result nvmlInitWithFlags(u32 flags) { (void)flags; return opened("nvmlInitWithFlags"); }
result nvmlInit_v2(void) { return opened("nvmlInit_v2"); }
result nvmlShutdown(void) { return opened("nvmlShutdown"); }
const char *nvmlErrorString(result code) { (void)code; return "an error of the double"; }
result nvmlSystemGetDriverVersion(char *out, u32 size) { return text(NULL, "nvmlSystemGetDriverVersion", out, size); }
result nvmlDeviceGetName(device *d, char *out, u32 size) { return text(d, "nvmlDeviceGetName", out, size); }
result nvmlDeviceGetUUID(device *d, char *out, u32 size) { return text(d, "nvmlDeviceGetUUID", out, size); }

result nvmlDeviceGetCount_v2(u32 *out) { return number32(NULL, "nvmlDeviceGetCount", out); }

result nvmlDeviceGetHandleByIndex_v2(u32 index, device **out) {
    char name[16], uuid[128];
    snprintf(name, sizeof name, "%u", index);
    *out = device_named(name);
    result code = ask(*out, "nvmlDeviceGetUUID", uuid, sizeof uuid);
    return code == NOT_SUPPORTED ? INVALID : code;
}

/* By what a line `DEVICE key wanted` says. */
static result by(const char *key, const char *wanted, device **out) {
    char line[1024], where[64], what[128], value[256];
    result code = injected("*", key);
    FILE *file = code ? NULL : fopen(getenv("NVML_DOUBLE"), "r");
    where[0] = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %127s %255s", where, what, value) == 3 && !strcmp(what, key) && !strcmp(value, wanted)) break;
        else where[0] = 0;
    if (file) fclose(file);
    if (code) return code;
    if (!where[0]) return NOT_FOUND;
    *out = device_named(where);
    return injected((*out)->name, key);
}
result nvmlDeviceGetHandleByUUID(const char *uuid, device **out) { return by("nvmlDeviceGetUUID", uuid, out); }
result nvmlDeviceGetHandleByPciBusId_v2(const char *id, device **out) { return by("nvmlDeviceGetPciInfo", id, out); }

result nvmlDeviceGetMigMode(device *d, u32 *current, u32 *pending) {
    result code = number32(d, "nvmlDeviceGetMigMode", current);
    *pending = *current;
    return code;
}
result nvmlDeviceGetMigDeviceHandleByIndex(device *d, u32 index, device **out) {
    char name[32], uuid[128];
    snprintf(name, sizeof name, "%s.%u", d->name, index);
    *out = device_named(name);
    result code = ask(*out, "nvmlDeviceGetUUID", uuid, sizeof uuid);
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}
result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **out) {
    char parent[16];
    if (!strchr(d->name, '.')) return INVALID;
    snprintf(parent, sizeof parent, "%.*s", (int)strcspn(d->name, "."), d->name);
    *out = device_named(parent);
    return injected((*out)->name, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
}

result nvmlDeviceGetPciInfo_v3(device *d, pci *out) {
    memset(out, 0, sizeof *out);
    return text(d, "nvmlDeviceGetPciInfo", out->busId, sizeof out->busId);
}
result nvmlDeviceGetMemoryInfo(device *d, memory1 *out) { return numbers(d, "nvmlDeviceGetMemoryInfo", 3, &out->total); }
result nvmlDeviceGetMemoryInfo_v2(device *d, memory2 *out) {
    return numbers(d, "nvmlDeviceGetMemoryInfo_v2", 4, &out->total);
}
result nvmlDeviceGetUtilizationRates(device *d, u32 *out) {
    u64 found[2];
    result code = numbers(d, "nvmlDeviceGetUtilizationRates", 2, found);
    if (!code) out[0] = (u32)found[0], out[1] = (u32)found[1];
    return code;
}
result nvmlDeviceGetTemperatureV(device *d, int *versioned) {
    return number32(d, "nvmlDeviceGetTemperatureV", (u32 *)&versioned[2]);
}
result nvmlDeviceGetMarginTemperature(device *d, int *versioned) {
    return number32(d, "nvmlDeviceGetMarginTemperature", (u32 *)&versioned[1]);
}
result nvmlDeviceGetViolationStatus(device *d, u32 policy, u64 *out) {
    char key[64];
    snprintf(key, sizeof key, "nvmlDeviceGetViolationStatus(%u)", policy);
    out[0] = 0;
    return numbers(d, key, 1, &out[1]);
}
result nvmlDeviceGetTotalEccErrors(device *d, u32 kind, u32 counter, u64 *out) {
    char key[64];
    snprintf(key, sizeof key, "nvmlDeviceGetTotalEccErrors(%u,%u)", kind, counter);
    return numbers(d, key, 1, out);
}
result nvmlDeviceGetRemappedRows(device *d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
    u64 found[4];
    result code = numbers(d, "nvmlDeviceGetRemappedRows", 4, found);
    if (!code) *corrected = found[0], *uncorrected = found[1], *pending = found[2], *failure = found[3];
    return code;
}
result nvmlDeviceGetNvLinkErrorCounter(device *d, u32 link, u32 counter, u64 *out) {
    char key[64];
    snprintf(key, sizeof key, "nvmlDeviceGetNvLinkErrorCounter(%u,%u)", link, counter);
    return numbers(d, key, 1, out);
}
result nvmlDeviceGetGpuFabricInfoV(device *d, fabric2 *out) {
    u64 found[3];
    if (out->version != 0x02000024) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    result code = numbers(d, "nvmlDeviceGetGpuFabricInfoV", 3, found);
    if (!code) out->state = found[0], out->status = found[1], out->health = found[2];
    return code;
}

/* `TYPE NUMBER`, the type being NVML's: 1 unsigned, 3 unsigned long long, 5 signed. */
result nvmlDeviceGetFieldValues(device *d, int count, field *fields) {
    char key[64], value[1024];
    result code = injected(d->name, "nvmlDeviceGetFieldValues");
    for (int i = 0; !code && i < count; i++) {
        snprintf(key, sizeof key, "field(%u,%u)", fields[i].fieldId, fields[i].scopeId);
        fields[i].value = 0;
        fields[i].ret = find(d->name, key, value, sizeof value) ? OK : NOT_SUPPORTED;
        snprintf(key, sizeof key, "field(%u)", fields[i].fieldId);
        if (fields[i].ret) fields[i].ret = find(d->name, key, value, sizeof value) ? OK : NOT_SUPPORTED;
        if (fields[i].ret) continue;
        if (value[0] == '!') { fields[i].ret = atoi(value + 1); continue; }
        char *at = value;
        fields[i].valueType = (u32)strtoul(at, &at, 10);
        long long found = strtoll(at, NULL, 0);
        if (fields[i].valueType == 5) { int narrow = (int)found; memcpy(&fields[i].value, &narrow, sizeof narrow); }
        else fields[i].value = (u64)found;
    }
    return code;
}

/* `PID BYTES PID BYTES ...` */
result nvmlDeviceGetComputeRunningProcesses_v3(device *d, u32 *count, process *out) {
    char value[1024], *at = value, *end;
    u32 room = *count, found = 0;
    result code = ask(d, "nvmlDeviceGetComputeRunningProcesses", value, sizeof value);
    if (code) return code;
    for (u64 pid = strtoull(at, &end, 10); end != at; pid = strtoull(at = end, &end, 10)) {
        u64 used = strtoull(at = end, &end, 10);
        if (out && found < room) out[found] = (process){(u32)pid, used, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

result nvmlEventSetCreate(event_set **out) {
    result code = opened("nvmlEventSetCreate");
    *out = code ? NULL : calloc(1, sizeof **out);
    return code;
}
result nvmlEventSetFree(event_set *set) { free(set); return opened("nvmlEventSetFree"); }
result nvmlDeviceRegisterEvents(device *d, u64 types, event_set *set) {
    char value[64];
    (void)types;
    result code = ask(d, "nvmlDeviceRegisterEvents", value, sizeof value);
    if ((code == OK || code == NOT_SUPPORTED) && set->count < 8) strcpy(set->watched[set->count++], d->name);
    return code == NOT_SUPPORTED ? OK : code;
}

static int next_event(event_set *set, event *out) {
    char line[1024], where[64], what[128];
    u64 type, data, instance;
    int seen = 0, is_found = 0;
    FILE *file = fopen(getenv("NVML_DOUBLE"), "r");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        int parts = sscanf(line, "%63s %127s %llu %llu %llu", where, what, &type, &data, &instance);
        if (parts < 4 || strcmp(what, "event") || seen++ < set->delivered) continue;
        set->delivered++;
        for (int i = 0; i < set->count; i++) is_found |= !strcmp(set->watched[i], where);
        *out = (event){device_named(where), type, data, parts > 4 ? (u32)instance : ~0u, ~0u};
    }
    if (file) fclose(file);
    return is_found;
}
result nvmlEventSetWait_v2(event_set *set, event *out, u32 timeout_ms) {
    for (u32 waited = 0; waited <= timeout_ms; waited += 5) {
        result code = opened("nvmlEventSetWait_v2");
        if (code) return code;
        if (next_event(set, out)) return OK;
        wait_ms(5);
    }
    return TIMED_OUT;
}
