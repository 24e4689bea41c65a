#include "device/cuda/runtime.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>

#include "base/log.h"
#include "base/sizes.h"
#include "device/cuda/built_for.h"
#include "device/cuda/memory_count.h"
#include "device/cuda/status.h"

namespace device::cuda {
namespace {

// Before and after all static objects that hold memory.
constinit MemoryCount device_memory_count;

constexpr int kMajorLeast = 8, kMajorMost = 9;  // what kernels are compiled for

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Of the PCI device; the kernel says -1 where there is one node or it does not know.
int numa_node_of(int ordinal) {
  char bus[32] = {};
  if (!to_result(cudaDeviceGetPCIBusId(bus, sizeof(bus), ordinal), "asking for the bus").ok()) {
    return -1;
  }
  std::string id = bus;
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + id + "/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

base::Result<void> check_driver(int driver) {
  if (driver == 0) {
    return base::error(base::Code::kUnsupported,
                       "no NVIDIA driver answers on this machine: install one for CUDA {} or later",
                       version_text(CUDART_VERSION));
  }
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return base::error(base::Code::kUnsupported,
                       "the NVIDIA driver serves CUDA {}, this program was built for CUDA {}: "
                       "update the driver",
                       version_text(driver), version_text(CUDART_VERSION));
  }
  return {};
}

bool has_kernels(const GpuInfo& gpu) {
  return gpu.major >= kMajorLeast && gpu.major <= kMajorMost;
}

base::Result<GpuInfo> describe(int ordinal, int driver) {
  cudaDeviceProp prop{};
  RETURN_IF_ERROR(to_result(cudaGetDeviceProperties(&prop, ordinal), "asking for the GPU"));
  GpuInfo gpu{.ordinal = ordinal,
              .name = prop.name,
              .major = prop.major,
              .minor = prop.minor,
              .num_sms = prop.multiProcessorCount,
              .memory_bytes = static_cast<int64_t>(prop.totalGlobalMem),
              .l2_bytes = prop.l2CacheSize,
              .shared_bytes_max = static_cast<int>(prop.sharedMemPerBlockOptin),
              .numa_node = numa_node_of(ordinal),
              .driver_version = driver};
  RETURN_IF_ERROR(use_gpu(gpu));
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(to_result(cudaMemGetInfo(&free, &total), "asking for free device memory"));
  gpu.free_bytes = static_cast<int64_t>(free);
  // No build helps a GPU that there are no kernels for: choose_gpu() says so.
  if (has_kernels(gpu)) RETURN_IF_ERROR(check_built_for(gpu));
  return gpu;
}

base::Result<GpuInfo> check_kernels(GpuInfo gpu) {
  if (has_kernels(gpu)) return gpu;
  return base::error(base::Code::kUnsupported,
                     "{} has compute capability {}.{}: there are kernels for {}.0 to {}.0",
                     gpu.name, gpu.major, gpu.minor, kMajorLeast, kMajorMost);
}

}  // namespace

base::Result<GpuInfo> find_gpu() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  RETURN_IF_ERROR(check_driver(driver));
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return base::error(
        base::Code::kUnsupported, "no GPU is visible ({})",
        status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  }
  return choose_gpu(count, [driver](int ordinal) { return describe(ordinal, driver); });
}

base::Result<GpuInfo> choose_gpu(int count,
                                 const std::function<base::Result<GpuInfo>(int)>& describe) {
  CHECK(count > 0);
  std::optional<base::Error> first;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    base::Result<GpuInfo> gpu = describe(ordinal);
    if (gpu.ok()) gpu = check_kernels(std::move(gpu).value());
    if (gpu.ok()) return gpu;
    LOG_INFO("GPU {} cannot be used: {}", ordinal, gpu.error().message);
    if (!first) first = gpu.error();
  }
  return *first;
}

base::Result<void> use_gpu(const GpuInfo& gpu) {
  return to_result(cudaSetDevice(gpu.ordinal), "choosing the GPU");
}

int64_t free_bytes(const GpuInfo& gpu) {
  size_t free = 0, total = 0;
  if (cudaSetDevice(gpu.ordinal) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return static_cast<int64_t>(free);
}

MemoryCount& device_memory() {
  return device_memory_count;
}

template <Memory kMemory>
base::Result<BufferOf<kMemory>> BufferOf<kMemory>::allocate(int64_t bytes, const char* what) {
  BufferOf made;
  if (bytes == 0) return made;
  void* data = nullptr;
  const auto size = static_cast<size_t>(bytes);
  const cudaError_t status = kMemory == Memory::kDevice
                                 ? cudaMalloc(&data, size)
                                 : cudaHostAlloc(&data, size, cudaHostAllocPortable);
  if (status != cudaSuccess) {
    cudaGetLastError();  // not sticky
    if constexpr (kMemory == Memory::kPinned) {
      return base::error(base::Code::kTooLarge, "{} of pinned host memory for {} are not to be had",
                         base::format_bytes(bytes), what);
    }
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return base::error(
        base::Code::kTooLarge, "{} of device memory for {} are not to be had: {} free",
        base::format_bytes(bytes), what, base::format_bytes(static_cast<int64_t>(free)));
  }
  made.data_ = static_cast<std::byte*>(data);
  made.size_ = bytes;
  if constexpr (kMemory == Memory::kDevice) device_memory_count.add(bytes);
  return made;
}

template <Memory kMemory>
BufferOf<kMemory>::~BufferOf() {
  if (data_ == nullptr) return;
  if constexpr (kMemory == Memory::kDevice) {
    cudaFree(data_);
    device_memory_count.remove(size_);
  } else {
    cudaFreeHost(data_);
  }
}

template class BufferOf<Memory::kDevice>;
template class BufferOf<Memory::kPinned>;

base::Result<Stream> Stream::create(Priority priority) {
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  Stream made;
  RETURN_IF_ERROR(
      to_result(cudaStreamCreateWithPriority(&made.handle_, cudaStreamNonBlocking,
                                             priority == Priority::kHigh ? greatest : least),
                "making a stream"));
  return made;
}

Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(handle_);
}

void Stream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const cudaError_t status =
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, handle_);
  CHECK(status == cudaSuccess, "copying {} bytes: {}", bytes, cudaGetErrorString(status));
}

void Stream::copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch,
                       int64_t width, int64_t rows) {
  if (width == 0 || rows == 0) return;
  // The copy engine's pitch has 31 bits.
  if (std::max(to_pitch, from_pitch) > INT32_MAX) {
    for (int64_t row = 0; row < rows; ++row) {
      copy(static_cast<std::byte*>(to) + row * to_pitch,
           static_cast<const std::byte*>(from) + row * from_pitch, width);
    }
    return;
  }
  const cudaError_t status = cudaMemcpy2DAsync(
      to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
      static_cast<size_t>(width), static_cast<size_t>(rows), cudaMemcpyDefault, handle_);
  CHECK(status == cudaSuccess, "copying {} rows of {} bytes: {}", rows, width,
        cudaGetErrorString(status));
}

void Stream::fill(void* to, int value, int64_t bytes) {
  if (bytes == 0) return;
  const cudaError_t status = cudaMemsetAsync(to, value, static_cast<size_t>(bytes), handle_);
  CHECK(status == cudaSuccess, "filling {} bytes: {}", bytes, cudaGetErrorString(status));
}

void Stream::record(const Event& event) {
  const cudaError_t status = cudaEventRecord(event.handle(), handle_);
  CHECK(status == cudaSuccess, "recording an event: {}", cudaGetErrorString(status));
}

void Stream::wait(const Event& event) {
  const cudaError_t status = cudaStreamWaitEvent(handle_, event.handle(), 0);
  CHECK(status == cudaSuccess, "waiting for an event: {}", cudaGetErrorString(status));
}

base::Result<void> Stream::synchronize() {
  return to_result(cudaStreamSynchronize(handle_), "a step on the GPU");
}

base::Result<Event> Event::create(bool timed) {
  Event made;
  RETURN_IF_ERROR(to_result(
      cudaEventCreateWithFlags(&made.handle_, timed ? cudaEventDefault : cudaEventDisableTiming),
      "making an event"));
  return made;
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(handle_);
}

bool Event::is_done() const {
  return cudaEventQuery(handle_) == cudaSuccess;
}

base::Result<void> Event::synchronize() {
  return to_result(cudaEventSynchronize(handle_), "waiting for the GPU");
}

double Event::us_since(const Event& begin) const {
  float ms = 0.0f;
  const cudaError_t status = cudaEventElapsedTime(&ms, begin.handle_, handle_);
  CHECK(status == cudaSuccess, "the time between two events: {}", cudaGetErrorString(status));
  return 1e3 * ms;
}

base::Result<Graph> Graph::capture(Stream& stream, const std::function<void()>& work) {
  RETURN_IF_ERROR(
      to_result(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
                "capturing a graph"));
  work();
  cudaGraph_t graph = nullptr;
  RETURN_IF_ERROR(to_result(cudaStreamEndCapture(stream.handle(), &graph), "capturing a graph"));
  Graph made;
  const cudaError_t status = cudaGraphInstantiate(&made.handle_, graph, 0);
  cudaGraphDestroy(graph);
  RETURN_IF_ERROR(to_result(status, "making a graph"));
  return made;
}

Graph::~Graph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(handle_);
}

base::Result<void> Graph::try_launch(Stream& stream) const {
  return to_result(cudaGraphLaunch(handle_, stream.handle()), "launching a graph");
}

void Graph::launch(Stream& stream) const {
  const base::Result<void> launched = try_launch(stream);
  CHECK(launched.ok(), "{}", launched.error().message);
}

}  // namespace device::cuda
