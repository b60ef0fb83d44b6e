// A stand-in for the CUDA driver and for NVRTC, so that the GPU path runs where there is no GPU.
//
// One library plays both.  As NVRTC it compiles the same kernel source with the host's compiler,
// behind a shim in which the threads of a block are fibers.  As the driver it runs the blocks of a
// launch one after another, in random order, and the warps of a block too.  It keeps what a card
// would forgive: memory is poisoned before it is given and after it is freed, and has guard bytes
// on both sides; streams run as late as they may, in any order that their events allow.
//
// STANDIN_HOME names a folder for what is compiled.  The functions standin_* at the end are for
// tests: injected failures, what was touched or leaked, the order of events.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

using u64 = uint64_t;
#define API extern "C" __attribute__((visibility("default")))

static const char SHIM[] = R"shim(
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
#define __CUDA_ARCH__ STANDIN_ARCH
#define __device__ static
#define __constant__ static
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static __attribute__((section("shared_memory")))
using std::min;
using std::max;
struct Dim { unsigned x, y, z; };
struct int4 { int x, y, z, w; };
extern "C" {
    // Filled in by the driver: the coordinates, and what gives way to other threads of the block.
    __attribute__((visibility("default"))) Dim standin_thread, standin_block;
    __attribute__((visibility("default"))) Dim standin_blocks, standin_dim;
    __attribute__((visibility("default"))) void (*standin_barrier)(int of_warp);
    __attribute__((visibility("default"))) unsigned standin_exchange[1024];
    static int shared_anchor __attribute__((section("shared_memory"), used));
    extern char __start_shared_memory[], __stop_shared_memory[];
    __attribute__((visibility("default"))) void standin_poison() {
        memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    }
}
#define threadIdx standin_thread
#define blockIdx standin_block
#define gridDim standin_blocks
#define blockDim standin_dim
static inline void __syncthreads() { standin_barrier(0); }
static inline void __syncwarp(unsigned) { standin_barrier(1); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int step) {
    static_assert(sizeof(T) == 4, "a lane gives 32 bits");
    unsigned me = threadIdx.x;
    memcpy(&standin_exchange[me], &v, 4);
    standin_barrier(1);
    memcpy(&v, &standin_exchange[me ^ step], 4);
    standin_barrier(1);
    return v;
}
static inline float __int_as_float(int v) { float f; memcpy(&f, &v, 4); return f; }
static inline int __float_as_int(float f) { int v; memcpy(&v, &f, 4); return v; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline int __float2int_rn(float a) { return a != a ? 0 : (int)std::nearbyint(a); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
#if STANDIN_ARCH >= 610
static inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 32; i += 8) sum += (signed char)(a >> i) * (signed char)(b >> i);
    return sum;
}
#endif
static inline float standin_half_to_float(unsigned short h) {
    unsigned sign = (h & 0x8000u) << 16, e = h >> 10 & 31, f = h & 1023;
    if (e == 0) { float v = f * 0x1p-24f; return sign ? -v : v; }
    return __int_as_float((int)(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | f << 13));
}
static inline unsigned short standin_float_to_half(float x) {
    unsigned v = (unsigned)__float_as_int(x), sign = v >> 16 & 0x8000u;
    float a = std::fabs(x);
    if (a != a) return 0x7fff;
    if (a == 0) return (unsigned short)sign;
    if (a >= 65520.0f) return (unsigned short)(sign | 0x7c00u);
    int e;
    std::frexp(a, &e);                          // a half has its unit at 2 ** (e - 11)
    if (e < -13) e = -13;
    unsigned whole = (unsigned)std::nearbyint(std::ldexp((double)a, 11 - e));   // ties to even
    return (unsigned short)(sign | (whole + ((unsigned)(e + 13) << 10)));
}
)shim";

// ---- failures and the log ----------------------------------------------------------------

static std::string fail_name;
static int fail_after = -1, fail_status = 0;
static std::mt19937 dice(1);
static std::vector<std::string> events;
static long n_calls = 0, touched = 0;
static bool capturing = false;

static int status_of(const char* name) {
    n_calls++;
    if (fail_after >= 0 && (fail_name.empty() || fail_name == name) && fail_after-- == 0)
        return fail_status;
    return 0;
}
#define BEGIN \
    if (int status = status_of(__func__)) return status
#define NOT_CAPTURED \
    if (capturing) return 900  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

// ---- fibers ------------------------------------------------------------------------------
// The threads of a block take turns, each on a stack of its own.

static const size_t STACK = 1 << 16;

#if defined(__x86_64__)
// Save the callee's registers, change stacks, take up the other's registers.
extern "C" void standin_switch(void** from, void* to);
asm(R"(
.globl standin_switch
.hidden standin_switch
standin_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
)");
struct Context {
    void* stack;
};
static void switch_to(Context& from, Context& to) { standin_switch(&from.stack, to.stack); }
static void prepare(Context& c, char* stack, void (*entry)()) {
    void** top = (void**)(stack + STACK - 64);
    *--top = nullptr;  // the entry never returns; and it finds rsp aligned
    *--top = (void*)entry;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    c.stack = top;
}
#else
#include <ucontext.h>
struct Context {
    ucontext_t c;
};
static void switch_to(Context& from, Context& to) { swapcontext(&from.c, &to.c); }
static void prepare(Context& c, char* stack, void (*entry)()) {
    getcontext(&c.c);
    c.c.uc_stack.ss_sp = stack;
    c.c.uc_stack.ss_size = STACK;
    c.c.uc_link = nullptr;
    makecontext(&c.c, entry, 0);
}
#endif

struct Dim {
    unsigned x, y, z;
};
enum State { READY, AT_BLOCK, AT_WARP, DONE };
struct Fiber {
    Context context;
    State state;
};
static std::vector<Fiber> fibers(1024);
static std::vector<std::unique_ptr<char[]>> stacks(1024);
static Context scheduler;
static unsigned here;
static std::function<void()> body;

static void fiber_main() {
    body();
    fibers[here].state = DONE;
    switch_to(fibers[here].context, scheduler);
}

static void barrier(int of_warp) {
    fibers[here].state = of_warp ? AT_WARP : AT_BLOCK;
    switch_to(fibers[here].context, scheduler);
}

static bool run_block(unsigned n, Dim* thread) {
    for (unsigned t = 0; t < n; t++) {
        if (!stacks[t]) stacks[t].reset(new char[STACK]);
        prepare(fibers[t].context, stacks[t].get(), fiber_main);
        fibers[t].state = READY;
    }
    unsigned warps = (n + 31) / 32;
    for (;;) {
        unsigned shift = dice() % warps;
        bool backwards = dice() & 1;
        for (unsigned i = 0; i < warps; i++) {  // warps in random order, lanes too
            unsigned warp = (backwards ? warps - 1 - i : i) + shift;
            warp %= warps;
            for (bool again = true; again;) {
                unsigned turn = dice() % 32;
                for (unsigned l = 0; l < 32; l++) {
                    unsigned t = warp * 32 + (l ^ turn);
                    if (t >= n || fibers[t].state != READY) continue;
                    here = t;
                    *thread = {t, 0, 0};
                    switch_to(scheduler, fibers[t].context);
                }
                unsigned waiting = 0, other = 0;
                for (unsigned t = warp * 32; t < n && t < warp * 32 + 32; t++)
                    (fibers[t].state == AT_WARP ? waiting : other)++;
                again = waiting > 0;
                if (waiting && other) return false;  // lanes of a warp went different ways
                for (unsigned t = warp * 32; again && t < n && t < warp * 32 + 32; t++)
                    fibers[t].state = READY;
            }
        }
        unsigned waiting = 0, done = 0;
        for (unsigned t = 0; t < n; t++) (fibers[t].state == AT_BLOCK ? waiting : done)++;
        if (!waiting) return true;
        for (unsigned t = 0; t < n; t++)  // a thread that has ended waits for nobody
            if (fibers[t].state == AT_BLOCK) fibers[t].state = READY;
    }
}

// ---- modules and launches ----------------------------------------------------------------

struct Function {
    void* entry;
    int n_args;
    void* module;
    std::string name;
};
struct Module {
    void* handle;
    std::vector<std::unique_ptr<Function>> functions;
};
static std::set<Module*> modules;

struct Op {  // of a stream
    std::function<void()> run;
    void* waits = nullptr;  // an event
    std::string name;
};
struct Event {
    long recorded = 0, done = 0;
    double time = 0;
};
struct Stream {
    std::deque<Op> ops;
};
static std::set<Stream*> streams;
static std::set<Event*> all_events;
static std::vector<Op> captured;
static int failed_launch = 0;
struct Graph {
    std::vector<Op> ops;
};
static std::set<Graph*> graphs;

template <class T>
static T& symbol(void* handle, const char* name) {
    return *(T*)dlsym(handle, name);
}

static void run_kernel(Function* f, Dim blocks, unsigned threads, const std::vector<u64>& args) {
    void* m = f->module;
    Dim *thread = &symbol<Dim>(m, "standin_thread"), *block = &symbol<Dim>(m, "standin_block");
    symbol<Dim>(m, "standin_blocks") = blocks;
    symbol<Dim>(m, "standin_dim") = {threads, 1, 1};
    symbol<void (*)(int)>(m, "standin_barrier") = barrier;
    auto poison = (void (*)())dlsym(m, "standin_poison");
    u64 a[32] = {0};
    std::copy(args.begin(), args.end(), a);
    auto call = (void (*)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
                          u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
                          u64, u64, u64, u64))f->entry;
    body = [&] {
        call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
             a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24],
             a[25], a[26], a[27], a[28], a[29], a[30], a[31]);
    };
    unsigned n = blocks.x * blocks.y * blocks.z;
    std::vector<unsigned> order(n);
    for (unsigned i = 0; i < n; i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), dice);
    for (unsigned i : order) {
        *block = {i % blocks.x, i / blocks.x % blocks.y, i / blocks.x / blocks.y};
        poison();
        if (!run_block(threads, thread)) failed_launch = 719;  // CUDA_ERROR_LAUNCH_FAILED
    }
}

static void enqueue(void* stream, Op op) {
    if (capturing) captured.push_back(std::move(op));
    else ((Stream*)stream)->ops.push_back(std::move(op));
}

// Run what there is in all streams, in any order that the events allow, until `until` is empty.
static void drain(Stream* until) {
    for (;;) {
        if (until && until->ops.empty()) return;
        std::vector<Stream*> able;
        for (Stream* s : streams)
            if (!s->ops.empty()) {
                Event* e = (Event*)s->ops.front().waits;
                if (!e || e->done >= e->recorded) able.push_back(s);
            }
        if (able.empty()) return;
        Stream* s = able[dice() % able.size()];
        Op op = std::move(s->ops.front());
        s->ops.pop_front();
        if (!op.name.empty()) events.push_back(op.name);
        if (op.run) op.run();
    }
}

// ---- memory ------------------------------------------------------------------------------

static const size_t GUARD = 256;
static const unsigned char GUARDED = 0xA5, POISON = 0xFF;  // as floats, no numbers
struct Block {
    char* base;
    size_t n;
};
static std::map<u64, Block> held, host_held, gone;
static size_t capacity = (size_t)1 << 31, in_use = 0;

static u64 give(std::map<u64, Block>& where, size_t n) {
    char* base = (char*)aligned_alloc(256, (n + 2 * GUARD + 255) / 256 * 256);
    memset(base, GUARDED, n + 2 * GUARD);
    memset(base + GUARD, POISON, n);
    u64 address = (u64)(base + GUARD);
    where[address] = {base, n};
    return address;
}

static void look(const Block& b, bool freed) {
    for (size_t i = 0; i < GUARD; i++)
        if ((unsigned char)b.base[i] != GUARDED ||
            (unsigned char)b.base[GUARD + b.n + i] != GUARDED) {
            touched++;
            break;
        }
    if (freed)
        for (size_t i = 0; i < b.n; i++)
            if ((unsigned char)b.base[GUARD + i] != POISON) {
                touched++;
                break;
            }
}

static bool take(std::map<u64, Block>& where, u64 address) {
    auto it = where.find(address);
    if (it == where.end()) return false;
    look(it->second, false);
    memset((char*)address, POISON, it->second.n);
    gone[address] = it->second;  // never given again: a late write shows
    where.erase(it);
    return true;
}

// Whether n bytes from address lie in memory of the card.
static bool inside(u64 address, size_t n) {
    auto it = held.upper_bound(address);
    if (it == held.begin()) return false;
    --it;
    return address + n <= it->first + it->second.n;
}

// ---- the driver's functions --------------------------------------------------------------

static int compute = 86, driver_version = 12090, n_devices = 1;
static bool context_current = false;

API int cuGetErrorName(int status, const char** text) {
    static const std::map<int, const char*> names = {
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {500, "CUDA_ERROR_NOT_FOUND"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
    auto it = names.find(status);
    *text = it == names.end() ? nullptr : it->second;
    return it == names.end();
}
API int cuGetErrorString(int status, const char** text) {
    *text = "in the stand-in";
    return 0;
}
API int cuInit(unsigned) {
    BEGIN;
    return n_devices ? 0 : 100;
}
API int cuDriverGetVersion(int* v) {
    BEGIN;
    *v = driver_version;
    return 0;
}
API int cuDeviceGetCount(int* n) {
    BEGIN;
    *n = n_devices;
    return 0;
}
API int cuDeviceGet(int* d, int i) {
    BEGIN;
    *d = i;
    return 0;
}
API int cuDeviceGetName(char* name, int n, int) {
    BEGIN;
    snprintf(name, n, "stand-in");
    return 0;
}
API int cuDeviceGetAttribute(int* v, int which, int) {
    BEGIN;
    *v = which == 75 ? compute / 10 : which == 76 ? compute % 10 : 0;
    return 0;
}
API int cuDevicePrimaryCtxRetain(void** c, int) {
    BEGIN;
    *c = (void*)0x1000;
    return 0;
}
API int cuCtxSetCurrent(void* c) {
    BEGIN;
    context_current = c != nullptr;
    return 0;
}
#define IN_CONTEXT \
    if (!context_current) return 201

API int cuMemGetInfo_v2(size_t* left, size_t* all) {
    BEGIN;
    *left = capacity - in_use;
    *all = capacity;
    return 0;
}
API int cuMemAlloc_v2(u64* address, size_t n) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    if (!n) return 1;
    if (in_use + n > capacity) return 2;
    in_use += n;
    *address = give(held, n);
    return 0;
}
API int cuMemFree_v2(u64 address) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    drain(nullptr);
    auto it = held.find(address);
    if (it == held.end()) return 1;
    in_use -= it->second.n;
    return take(held, address) ? 0 : 1;
}
API int cuMemHostAlloc(void** p, size_t n, unsigned) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    *p = (void*)give(host_held, n);
    return 0;
}
API int cuMemFreeHost(void* p) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    return take(host_held, (u64)p) ? 0 : 1;
}
API int cuMemsetD8_v2(u64 a, unsigned char v, size_t n) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    if (!inside(a, n)) return 1;
    memset((void*)a, v, n);
    return 0;
}
API int cuMemcpyHtoD_v2(u64 to, const void* from, size_t n) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    if (!inside(to, n)) return 1;
    memcpy((void*)to, from, n);
    return 0;
}
API int cuMemcpyDtoH_v2(void* to, u64 from, size_t n) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    if (!inside(from, n)) return 1;
    memcpy(to, (void*)from, n);
    return 0;
}
static std::string sized(const char* what, size_t n) {
    return std::string(what) + " " + std::to_string(n);
}
API int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t n, void* stream) {
    BEGIN;
    IN_CONTEXT;
    if (!inside(to, n)) return 1;
    enqueue(stream, {[=] { memcpy((void*)to, from, n); }, nullptr, sized("copy in", n)});
    return 0;
}
API int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t n, void* stream) {
    BEGIN;
    IN_CONTEXT;
    if (!inside(from, n)) return 1;
    enqueue(stream, {[=] { memcpy(to, (void*)from, n); }, nullptr, sized("copy out", n)});
    return 0;
}

API int cuModuleLoadData(void** module, const void* image) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    const char* code = (const char*)image;
    if (memcmp(code, "STANDIN ", 8)) return 209;
    size_t n = strtoull(code + 8, nullptr, 10);
    std::string path =
        std::string(getenv("STANDIN_HOME") ? getenv("STANDIN_HOME") : "/tmp") + "/module-XXXXXX";
    int fd = mkstemp(&path[0]);
    if (fd < 0 || write(fd, code + 32, n) != (ssize_t)n) return 1;
    close(fd);
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 209;
    }
    auto* m = new Module{handle, {}};
    modules.insert(m);
    *module = m;
    return 0;
}
API int cuModuleUnload(void* module) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    if (!modules.erase((Module*)module)) return 1;
    drain(nullptr);
    dlclose(((Module*)module)->handle);
    delete (Module*)module;
    return 0;
}
API int cuModuleGetFunction(void** f, void* module, const char* name) {
    BEGIN;
    IN_CONTEXT;
    void *h = ((Module*)module)->handle, *entry = dlsym(h, name);
    int* n = (int*)dlsym(h, (std::string(name) + "_n_args").c_str());
    if (!entry || !n) return 500;
    ((Module*)module)->functions.emplace_back(new Function{entry, *n, h, name});
    *f = ((Module*)module)->functions.back().get();
    return 0;
}
API int cuLaunchKernel(void* f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                       unsigned tz, unsigned shared, void* stream, void** params, void**) {
    BEGIN;
    IN_CONTEXT;
    if (!x || !y || !z || !tx || ty != 1 || tz != 1 || tx > 1024 || y > 65535 || z > 65535)
        return 1;
    auto* function = (Function*)f;
    std::vector<u64> args;
    for (int i = 0; i < function->n_args; i++) args.push_back(*(u64*)params[i]);
    enqueue(stream, {[=] { run_kernel(function, {x, y, z}, tx, args); }, nullptr, function->name});
    return 0;
}

API int cuStreamCreate(void** s, unsigned) {
    BEGIN;
    IN_CONTEXT;
    auto* n = new Stream;
    streams.insert(n);
    *s = n;
    return 0;
}
API int cuStreamDestroy_v2(void* s) {
    BEGIN;
    IN_CONTEXT;
    drain((Stream*)s);
    if (!streams.erase((Stream*)s)) return 1;
    delete (Stream*)s;
    return 0;
}
API int cuStreamSynchronize(void* s) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    drain((Stream*)s);
    int status = ((Stream*)s)->ops.empty() ? failed_launch : 719;
    failed_launch = 0;
    return status;
}
API int cuStreamWaitEvent(void* s, void* e, unsigned) {
    BEGIN;
    IN_CONTEXT;
    enqueue(s, {nullptr, e, ""});
    return 0;
}
API int cuStreamBeginCapture_v2(void*, int) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    capturing = true;
    captured.clear();
    return 0;
}
API int cuStreamEndCapture(void*, void** g) {
    bool was = capturing;
    capturing = false;
    BEGIN;
    IN_CONTEXT;
    if (!was) return 1;
    auto* made = new Graph{std::move(captured)};
    captured.clear();
    graphs.insert(made);
    *g = made;
    return 0;
}
API int cuGraphInstantiateWithFlags(void** e, void* g, unsigned long long) {
    BEGIN;
    IN_CONTEXT;
    auto* made = new Graph{((Graph*)g)->ops};
    graphs.insert(made);
    *e = made;
    return 0;
}
API int cuGraphLaunch(void* e, void* s) {
    BEGIN;
    IN_CONTEXT;
    NOT_CAPTURED;
    for (auto& op : ((Graph*)e)->ops) ((Stream*)s)->ops.push_back(op);
    return 0;
}
static int drop(void* g) {
    if (!graphs.erase((Graph*)g)) return 1;
    delete (Graph*)g;
    return 0;
}
API int cuGraphDestroy(void* g) {
    BEGIN;
    return drop(g);
}
API int cuGraphExecDestroy(void* g) {
    BEGIN;
    drain(nullptr);
    return drop(g);
}

API int cuEventCreate(void** e, unsigned) {
    BEGIN;
    IN_CONTEXT;
    auto* n = new Event;
    all_events.insert(n);
    *e = n;
    return 0;
}
API int cuEventDestroy_v2(void* e) {
    BEGIN;
    if (!all_events.erase((Event*)e)) return 1;
    delete (Event*)e;
    return 0;
}
API int cuEventRecord(void* e, void* s) {
    BEGIN;
    IN_CONTEXT;
    auto* event = (Event*)e;
    long turn = ++event->recorded;
    enqueue(s, {[=] {
                    event->done = turn;
                    event->time += 1;
                },
                nullptr, ""});
    return 0;
}
API int cuEventElapsedTime(float* ms, void*, void*) {
    BEGIN;
    *ms = 1;
    return 0;
}

// What a context still holds goes with it; a program that closes properly leaves nothing.
static long n_held() {
    return (long)(held.size() + host_held.size() + modules.size() + streams.size() +
                  graphs.size() + all_events.size());
}
static long leaked = 0;
API int cuDevicePrimaryCtxRelease_v2(int) {
    BEGIN;
    leaked += n_held();
    drain(nullptr);
    for (auto* where : {&held, &host_held})
        while (!where->empty()) take(*where, where->begin()->first);
    in_use = 0;
    for (auto* m : modules) dlclose(m->handle);
    modules.clear();
    streams.clear();
    graphs.clear();
    all_events.clear();
    context_current = capturing = false;
    return 0;
}

// ---- NVRTC -------------------------------------------------------------------------------

struct Program {
    std::string source, log, code;
};
static std::vector<int> archs = {50, 52, 60, 61, 70, 75, 80, 86, 89, 90};

API const char* nvrtcGetErrorString(int status) {
    return status == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
API int nvrtcVersion(int* major, int* minor) {
    BEGIN;
    *major = 12;
    *minor = 9;
    return 0;
}
API int nvrtcGetNumSupportedArchs(int* n) {
    BEGIN;
    *n = (int)archs.size();
    return 0;
}
API int nvrtcGetSupportedArchs(int* out) {
    BEGIN;
    std::copy(archs.begin(), archs.end(), out);
    return 0;
}
API int nvrtcCreateProgram(void** p, const char* source, const char*, int, void*, void*) {
    BEGIN;
    *p = new Program{source, "", ""};
    return 0;
}
API int nvrtcDestroyProgram(void** p) {
    BEGIN;
    delete (Program*)*p;
    *p = nullptr;
    return 0;
}

static void replace(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
}
static std::string contents(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    std::stringstream s;
    s << f.rdbuf();
    return s.str();
}

API int nvrtcCompileProgram(void* program, int n_options, const char** options) {
    BEGIN;
    auto* p = (Program*)program;
    std::string source = p->source, arch;
    bool no_fma = false;
    for (int i = 0; i < n_options; i++) {
        std::string option = options[i];
        if (option.rfind("--gpu-architecture=", 0) == 0)
            arch = option.substr(option.find('_') + 1);
        if (option == "--fmad=false") no_fma = true;
    }
    if (arch.empty()) return 5;
    // The two lines of PTX, in C.
    replace(source, R"(asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));)",
            "f = standin_half_to_float(h);");
    replace(source, R"(asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));)",
            "h = standin_float_to_half(f);");
    // How many arguments each kernel takes, which the driver reads from a real module.
    std::string counts;
    const std::string mark = "extern \"C\" __global__ void __launch_bounds__(";
    for (size_t at = 0; (at = source.find(mark, at)) != std::string::npos;) {
        at = source.find(')', at + mark.size()) + 1;
        size_t open = source.find('(', at), close = source.find(") {", open);
        std::string name = source.substr(at, open - at);
        name.erase(0, name.find_first_not_of(" \n"));
        int n = 1;
        for (size_t i = open; i < close; i++) n += source[i] == ',';
        counts += "extern \"C\" __attribute__((visibility(\"default\"))) int " + name +
                  "_n_args = " + std::to_string(n) + ";\n";
    }
    std::string home = getenv("STANDIN_HOME") ? getenv("STANDIN_HOME") : "/tmp",
                dir = home + "/nvrtc-XXXXXX";
    if (!mkdtemp(&dir[0])) return 1;
    std::ofstream(dir + "/k.cpp") << SHIM << "\n#line 1 \"kshipra.cu\"\n" << source << counts;
    std::string command =
        "g++ -std=gnu++14 -O1 -w -shared -fPIC -fvisibility=hidden -fno-strict-aliasing "
        "-DSTANDIN_ARCH=" +
        arch + "0 -ffp-contract=" + (no_fma ? "off" : "fast") + " -o " + dir + "/k.so " + dir +
        "/k.cpp 2> " + dir + "/log";
    int rc = system(command.c_str());
    p->log = contents(dir + "/log");
    std::string image = contents(dir + "/k.so");
    for (const char* name : {"/k.cpp", "/k.so", "/log"}) unlink((dir + name).c_str());
    rmdir(dir.c_str());
    if (rc) return 6;
    char head[33];
    snprintf(head, sizeof head, "STANDIN %-24zu", image.size());
    p->code = head + image;
    return 0;
}
API int nvrtcGetProgramLogSize(void* p, size_t* n) {
    BEGIN;
    *n = ((Program*)p)->log.size() + 1;
    return 0;
}
API int nvrtcGetProgramLog(void* p, char* out) {
    BEGIN;
    strcpy(out, ((Program*)p)->log.c_str());
    return 0;
}
static int code_size(void* p, size_t* n) {
    *n = ((Program*)p)->code.size();
    return 0;
}
static int code(void* p, char* out) {
    memcpy(out, ((Program*)p)->code.data(), ((Program*)p)->code.size());
    return 0;
}
API int nvrtcGetPTXSize(void* p, size_t* n) {
    BEGIN;
    return code_size(p, n);
}
API int nvrtcGetPTX(void* p, char* out) {
    BEGIN;
    return code(p, out);
}
API int nvrtcGetCUBINSize(void* p, size_t* n) {
    BEGIN;
    return code_size(p, n);
}
API int nvrtcGetCUBIN(void* p, char* out) {
    BEGIN;
    return code(p, out);
}

// ---- for tests ---------------------------------------------------------------------------

// Let the call number `after` (0: the next) of this function, or of any, fail.
API void standin_fail(const char* name, int after, int status) {
    fail_name = name ? name : "";
    fail_after = after;
    fail_status = status;
}
API void standin_seed(unsigned seed) { dice.seed(seed); }
API void standin_card(int compute_, int version, int devices, size_t bytes) {
    compute = compute_;
    driver_version = version;
    n_devices = devices;
    capacity = bytes;
}
// Blocks of memory written where nobody may; all that is held is looked at.
API long standin_touched() {
    for (auto* where : {&held, &host_held})
        for (auto& b : *where) look(b.second, false);
    for (auto& b : gone) look(b.second, true);
    long n = touched;
    touched = 0;
    return n;
}
API long standin_held() { return n_held(); }
API long standin_leaked() {
    long n = leaked;
    leaked = 0;
    return n;
}
API size_t standin_bytes() { return in_use; }
API long standin_calls() {
    long n = n_calls;
    n_calls = 0;
    return n;
}
API size_t standin_events(char* out, size_t room) {
    std::string text;
    for (auto& e : events) text += e + "\n";
    if (text.size() < room) {
        strcpy(out, text.c_str());
        events.clear();
    }
    return text.size() + 1;
}
