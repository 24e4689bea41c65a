// The CUDA runtime, wrapped once: what the rest of the house knows of a GPU.
//
// Includes no CUDA header, so that plain C++ files may use it. Every call that can fail returns a
// Result; kernels are launched by ops/cuda and store/cuda on a Stream's handle. A GPU's errors are
// sticky: after kInternal from synchronize() nothing that was computed may be used.
// Thread: each object one thread at a time; objects may be used by different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/result.h"

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

namespace device::cuda {

// What the GPU is; asked once at start.
struct GpuInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int num_sms = 0;
  int64_t memory_bytes = 0, free_bytes = 0;
  int64_t l2_bytes = 0;
  int shared_bytes_max = 0;  // of one block, opted in
  int numa_node = -1;        // of the host, -1: unknown
  int driver_version = 0;    // as CUDA counts: 13000 is 13.0
  bool is_hopper() const { return major == 9; }
};

// The first GPU that can run Spillway, made current for the calling thread. Others are passed over,
// such as one in exclusive mode that another process has.
// Errors, where there is none, one line for people: no driver, a driver older than the toolkit that
// this was built with (both versions named), no GPU (kUnsupported); else what is wrong with the
// first GPU: outside 8.0 to 9.0, no code in this build (kUnsupported), or CUDA's (kInternal).
base::Result<GpuInfo> find_gpu();
// Its choice among `count` GPUs (at least one) that `describe` makes current and describes, by
// ordinal.
base::Result<GpuInfo> choose_gpu(int count,
                                 const std::function<base::Result<GpuInfo>(int)>& describe);
// Makes the GPU current in this thread: once in each thread that uses it.
base::Result<void> use_gpu(const GpuInfo& gpu);

// Of its memory, now.
int64_t free_bytes(const GpuInfo& gpu);

enum class Memory : uint8_t { kDevice, kPinned };

// Memory that the GPU reads: its own, or pinned memory of the host, small and short of it (homes
// use store/cuda/pinned_pool.h). Movable, not copyable. Errors of allocate(): kTooLarge naming
// `what`, the size and, of the device, what is free. Contents are undefined (tests fill them with
// 0xff).
template <Memory kMemory>
class BufferOf {
 public:
  BufferOf() = default;
  static base::Result<BufferOf> allocate(int64_t bytes, const char* what);
  BufferOf(BufferOf&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  BufferOf& operator=(BufferOf&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~BufferOf();
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};
using Buffer = BufferOf<Memory::kDevice>;
using PinnedBuffer = BufferOf<Memory::kPinned>;
// Both are made in runtime.cc.
extern template class BufferOf<Memory::kDevice>;
extern template class BufferOf<Memory::kPinned>;

class Event;

// A queue of work on the GPU.
class Stream {
 public:
  enum class Priority : uint8_t { kNormal, kHigh };
  static base::Result<Stream> create(Priority priority = Priority::kNormal);
  Stream() = default;
  Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Stream();
  cudaStream_t handle() const { return handle_; }

  // Asynchronous copies, kind found from the addresses; host memory should be pinned.
  void copy(void* to, const void* from, int64_t bytes);
  // `rows` runs of `width` bytes.
  void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
                 int64_t rows);
  void fill(void* to, int value, int64_t bytes);
  void record(const Event& event);
  void wait(const Event& event);  // later work of this stream waits for it
  // Waits for all work. Errors: kInternal with CUDA's words, of any earlier asynchronous failure.
  base::Result<void> synchronize();

 private:
  cudaStream_t handle_ = nullptr;
};

// A point in a stream.
class Event {
 public:
  static base::Result<Event> create(bool timed = false);
  Event() = default;
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Event();
  cudaEvent_t handle() const { return handle_; }
  bool is_done() const;
  base::Result<void> synchronize();
  // Microseconds from `begin` to this; both timed and done.
  double us_since(const Event& begin) const;

 private:
  cudaEvent_t handle_ = nullptr;
};

// A captured sequence of launches, replayed as one.
class Graph {
 public:
  // Captures what `work` enqueues on `stream` (and on streams that it forks from and joins to it).
  // Errors: kInternal, as where device memory is short. The stream then works on: nothing has
  // reached it, though `work` may have run.
  static base::Result<Graph> capture(Stream& stream, const std::function<void()>& work);
  Graph() = default;
  Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Graph();
  bool empty() const { return handle_ == nullptr; }
  void launch(Stream& stream) const;
  // Errors: kInternal, as where device memory is short; nothing was enqueued. The graph is not to
  // be launched again.
  base::Result<void> try_launch(Stream& stream) const;

 private:
  cudaGraphExec_t handle_ = nullptr;
};

}  // namespace device::cuda
