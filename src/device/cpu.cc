#include "device/cpu.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace device {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#else
bool has_avx2() {
  return false;
}
bool has_avx512() {
  return false;
}
#endif

// First number in a file, or `otherwise` when there is none ("max" included).
int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : otherwise;
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Cores that the cgroup's CPU quota pays for, rounded up; kNoLimit without a quota.
int64_t quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return kNoLimit;
  return (quota + period - 1) / period;
}

int64_t system_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return int64_t{1} << 30;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa detect_isa() {
  if (has_avx512()) return Isa::kAvx512;
  if (has_avx2()) return Isa::kAvx2;
  return Isa::kReference;
}

base::Result<Isa> parse_isa(std::string_view name) {
  for (Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512}) {
    if (name != isa_name(isa)) continue;
    if (isa > detect_isa()) {
      return base::error(base::Code::kUnsupported, "--isa {}: this processor offers {} at most",
                         name, isa_name(detect_isa()));
    }
    return isa;
  }
  return base::error(base::Code::kInvalidArgument, "--isa {}: expected reference, avx2 or avx512",
                     name);
}

int num_physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof(mask), &mask) != 0) return 1;
  std::set<std::pair<int64_t, int64_t>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    cores.emplace(read_number(topology + "physical_package_id", 0),
                  read_number(topology + "core_id", cpu));
  }
  return static_cast<int>(
      std::max<int64_t>(1, std::min<int64_t>(static_cast<int64_t>(cores.size()), quota_cores())));
}

int64_t memory_available_bytes() {
  int64_t limit = read_number("/sys/fs/cgroup/memory.max", kNoLimit);
  int64_t used = read_number("/sys/fs/cgroup/memory.current", 0);
  int64_t left = limit == kNoLimit ? kNoLimit : std::max<int64_t>(0, limit - used);
  return std::min(system_available_bytes(), left);
}

}  // namespace device
