#include "ops/kv_seal.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/kv_seal_kernels.h"

namespace ops {
namespace {

void run(const cpu::KvSealKernels& kernels, device::Stream& stream, const KvSealArgs& args) {
  const core::PageShape& shape = args.page;
  CHECK(shape.is_quantised() && shape.head_dim % 16 == 0, "{} pages of head dim {}",
        core::info(shape.type).name, shape.head_dim);
  const cpu::SealPageFn seal = shape.type == core::DType::kI8 ? kernels.i8 : kernels.f8_e4m3;
  // Pages for which waking a thread pays: one of 8k elements takes a few microseconds.
  constexpr int64_t kItemPages = 4;
  const auto num_pages = static_cast<int64_t>(args.items.size());
  const int64_t used =
      2 * int64_t{shape.page_tokens} * shape.head_dim + (int64_t{shape.head_dim} + 1) * 4;
  stream.pool().parallel_for((num_pages + kItemPages - 1) / kItemPages, [&](int64_t item, int) {
    const int64_t end = std::min(num_pages, (item + 1) * kItemPages);
    for (int64_t i = item * kItemPages; i < end; ++i) {
      const KvSealItem& page = args.items[static_cast<size_t>(i)];
      seal(page.open, shape.page_tokens, shape.head_dim, page.page);
      std::memset(page.page + used, 0, static_cast<size_t>(shape.page_bytes() - used));
    }
  });
}

}  // namespace

namespace avx2 {
void kv_seal(device::Stream& stream, const KvSealArgs& args) {
  run(cpu::kKvSealAvx2, stream, args);
}
}  // namespace avx2

namespace avx512 {
void kv_seal(device::Stream& stream, const KvSealArgs& args) {
  run(cpu::kKvSealAvx512, stream, args);
}
}  // namespace avx512

}  // namespace ops
