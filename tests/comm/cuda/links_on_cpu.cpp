// links.cu for a CPU: a side of ping-pong is a thread, a stream kernel is a loop over its blocks and threads.
//
// Only what links.cu uses is here; the emulator beside it runs the all-reduce kernels, which need far more.

#include <atomic>
#include <chrono>
#include <thread>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static thread_local

struct Index {
  unsigned x;
};
static thread_local Index threadIdx{0}, blockIdx{0}, blockDim{1}, gridDim{1};

struct uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }

inline long long clock64() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

inline std::atomic<u32>& word_at(u64 address) { return *reinterpret_cast<std::atomic<u32>*>(address); }
inline void store_release(u64 address, u32 word) { word_at(address).store(word, std::memory_order_release); }
inline u32 load_acquire(u64 address) {
  std::this_thread::yield();  // the two sides may share a core
  return word_at(address).load(std::memory_order_acquire);
}
inline void store_line(u8* address, uint4 line) {
  const u64 at = reinterpret_cast<u64>(address);
  word_at(at + 4).store(line.y), word_at(at + 8).store(line.z), word_at(at + 12).store(line.w), word_at(at).store(line.x);
}
inline uint4 load_line(const u8* address) {
  const u64 at = reinterpret_cast<u64>(address);
  return uint4{load_acquire(at), load_acquire(at + 4), load_acquire(at + 8), load_acquire(at + 12)};
}

#include FV_SOURCE

extern "C" void run_ping_pong(const PingCall* first, const PingCall* second) {
  std::thread other([second] { fastverify_ping_pong(*second); });
  fastverify_ping_pong(*first);
  other.join();
}

extern "C" void run_stream(int loads, const StreamCall* call, unsigned blocks, unsigned threads) {
  gridDim.x = blocks, blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) loads ? fastverify_load_stream(*call) : fastverify_store_stream(*call);
}
