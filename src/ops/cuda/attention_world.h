// Sequences with random q, k and v in pages of device memory, for the tests of attention on the
// GPU: the same bytes are attended to by ops/reference on the host. Everything that no row may use
// is NaN: frames nobody owns, keys behind a sequence's last, and what spoil_unseen() is told to.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <random>
#include <vector>

#include "device/cuda/runtime.h"
#include "ops/attention.h"
#include "ops/cuda/attention.h"

namespace ops::cuda {

struct WorldShape {
  int32_t num_q_heads = 0, num_kv_heads = 0, head_dim = 0, page_tokens = 0;
  core::DType type = core::DType::kBF16;
  std::vector<core::HeadKind> kinds;  // (Hk); empty: retrieval heads
  bool rings = false;                 // streaming heads live in rings
  bool head_tables = false;           // a table for each head; not with streaming heads in blocks
  float q_scale = 1.5f;               // standard deviation: the larger, the fewer keys decide a row
};

// Rows of one sequence in a call: its positions [begin, end).
struct WorldPart {
  int32_t sequence = 0, begin = 0, end = 0;
  std::vector<std::vector<int32_t>> selected;  // (Hk) pages; empty: no list, or of that head none
};

class AttentionWorld {
 public:
  // `rows_max`: of a prompt segment (rings are as large as that takes).
  AttentionWorld(const WorldShape& shape, const std::vector<int32_t>& lengths, uint32_t seed,
                 int32_t rows_max = 1);

  // (T, Hq, D) of the parts' rows in their order.
  std::vector<float> expected(const std::vector<WorldPart>& parts) const;
  // The same as BF16 bits from the device. Decode: parts are one row each; one of a negative
  // sequence is a row of padding, whose output must be left alone.
  std::vector<uint16_t> decode(const std::vector<WorldPart>& parts);
  std::vector<uint16_t> prefill(const std::vector<WorldPart>& parts,
                                void (*attend)(cudaStream_t, const PrefillArgs&));

  // Makes K and V NaN wherever no row of `parts` sees them. Not of quantised pages, nor in rings.
  void spoil_unseen(const std::vector<WorldPart>& parts);

  float largest_value() const;
  int64_t row_elements() const { return int64_t{shape_.num_q_heads} * shape_.head_dim; }

 private:
  struct Sequence {
    int32_t length = 0;
    std::vector<float> q;              // (length, Hq, D), BF16 values
    std::vector<int32_t> rows;         // of frames, by page
    std::vector<int32_t> head_frames;  // (Hk, pages) flat
    std::vector<int32_t> open_rows;
    // As the reference's tables.
    std::vector<int32_t> frames, stream_frames, open_frames;
  };
  struct Upload;

  bool is_streaming(int32_t head) const {
    return !shape_.kinds.empty() && shape_.kinds[static_cast<size_t>(head)].is_streaming();
  }
  int32_t pages(int32_t length) const {
    return (length + shape_.page_tokens - 1) / shape_.page_tokens;
  }
  void lay_out(const std::vector<int32_t>& lengths, int32_t rows_max, std::mt19937& random);
  void hand_out_pages(const std::vector<int32_t>& lengths, int32_t num_rows,
                      const core::RingShape& ring, std::mt19937& random);
  void fill(Sequence& sequence, std::mt19937& random);
  bool sees(const WorldPart& part, int32_t key, int32_t head) const;
  ops::KvLayer host_layer() const { return {page_, heads_}; }
  AttentionSegment segment(const Sequence& sequence) const;
  Upload upload();
  PageTable table_of(Upload& call, const WorldPart& part) const;
  void make_workspace(int32_t rows, int32_t context_max);
  void copy_pools();

  WorldShape shape_;
  core::PageShape page_;
  std::vector<std::byte> pool_, rings_, open_;  // as on the device
  std::vector<KvHead> heads_;
  std::vector<int32_t> columns_, ring_columns_;
  KvLayer layer_;  // device pointers
  std::vector<Sequence> sequences_;
  float largest_value_ = 0.0f;
  device::cuda::Stream stream_;
  std::vector<device::cuda::Buffer> buffers_;
  device::cuda::Buffer device_pool_, device_rings_, device_open_, workspace_;
  int64_t workspace_bytes_ = 0;
};

// Fails for each output that is NaN or further from the expected than `bound`: the first few by
// index.
void expect_close(const std::vector<uint16_t>& actual, const std::vector<float>& expected,
                  float bound);

}  // namespace ops::cuda
