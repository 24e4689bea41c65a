// What this machine's processor and memory can do, asked once at start.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace device {

// Instruction sets that the CPU ops are written for, in rising order. kAvx512 needs F, BW, DQ, VL,
// VNNI and BF16 (Zen 4 and later, Cooper Lake, Sapphire Rapids); a processor with less runs kAvx2,
// which needs AVX2, FMA and F16C.
enum class Isa : uint8_t { kReference, kAvx2, kAvx512 };
const char* isa_name(Isa isa);

// The best set that CPUID and the operating system report.
Isa detect_isa();
// Errors: kInvalidArgument for an unknown name, kUnsupported for a set that this processor lacks.
base::Result<Isa> parse_isa(std::string_view name);

// Physical cores that this process may run on (affinity mask and cgroup quota counted); at least 1.
int num_physical_cores();

// Bytes of memory that this process may still take: the smaller of what the system has available
// and what the cgroup limit leaves.
int64_t memory_available_bytes();

}  // namespace device
