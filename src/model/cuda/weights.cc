#include "model/cuda/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/check.h"
#include "ops/cuda/fp8_rows.h"
#include "ops/cuda/quantised.h"
#include "ops/packed_matrix.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace model::cuda {
namespace {

constexpr int64_t kAlign = 256;
// Of one of two pinned buffers: large enough for the link's full speed, small beside any model.
constexpr int64_t kStagingBytes = 32 << 20;
// What one thread converts at a time.
constexpr int64_t kItemBytes = 256 << 10;

// A tensor of the file, and where its rows or elements go.
struct Piece {
  std::string name;
  std::byte* to = nullptr;
  bool is_vector = false;
  core::DType type = core::DType::kBF16;  // of a matrix, on the device
  float* scales = nullptr;                // of its rows in e4m3
};

// A tensor that is part of a matrix.
struct Rows {
  const char* name;
  int64_t count;
};

constexpr int64_t kTileRows = 16;

// Device bytes of rows of a matrix.
int64_t matrix_bytes(core::DType type, int64_t rows, int64_t cols) {
  return type == core::DType::kBF16 ? rows * cols * 2
                                    : ops::cuda::quantised_bytes(type, rows, cols);
}

const load::Tensor& tensor_of(const load::ModelFiles& files, const std::string& name) {
  const auto found = files.tensors.find(name);
  CHECK(found != files.tensors.end(), "load accepted a model without {}", name);
  return found->second;
}

// Gives every tensor its place behind `base`, in the order of the forward pass.
class Planner {
 public:
  Planner(const load::ModelFiles& files, WeightsAs as, std::byte* base)
      : files_(files),
        config_(files.config),
        as_(as),
        at_(reinterpret_cast<uintptr_t>(base)),
        begin_(at_) {}

  void plan(DecoderWeights* w) {
    const core::ModelConfig& c = config_;
    w->token_embd = matrix(c.model_dim, {{"token_embd", c.vocab_size}});
    w->layers.resize(static_cast<size_t>(c.num_layers));
    for (int32_t layer = 0; layer < c.num_layers; ++layer) {
      prefix_ = fmt::format("blk.{}.", layer);
      plan_layer(&w->layers[static_cast<size_t>(layer)]);
    }
    prefix_.clear();
    w->output_norm = vector(true, c.model_dim, "output_norm");
    w->output = c.tied_embeddings ? w->token_embd : matrix(c.model_dim, {{"output", c.vocab_size}});
  }
  int64_t bytes() const { return static_cast<int64_t>(at_ - begin_); }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  void plan_layer(LayerWeights* w) {
    const core::ModelConfig& c = config_;
    const int64_t q_rows = int64_t{c.num_q_heads} * c.head_dim;
    const int64_t kv_rows = int64_t{c.num_kv_heads} * c.head_dim;
    w->attn_norm = vector(true, c.model_dim, "attn_norm");
    w->qkv =
        layer_matrix(c.model_dim, {{"attn_q", q_rows}, {"attn_k", kv_rows}, {"attn_v", kv_rows}});
    w->qkv_bias = vector(c.qkv_bias, q_rows + 2 * kv_rows, "");
    if (c.qkv_bias) {
      elements(w->qkv_bias, "attn_q_bias");
      elements(w->qkv_bias + q_rows, "attn_k_bias");
      elements(w->qkv_bias + q_rows + kv_rows, "attn_v_bias");
    }
    w->q_norm = vector(c.qk_norm, c.head_dim, "attn_q_norm");
    w->k_norm = vector(c.qk_norm, c.head_dim, "attn_k_norm");
    w->attn_output = layer_matrix(q_rows, {{"attn_output", c.model_dim}});
    w->attn_output_bias = vector(c.attention_out_bias, c.model_dim, "attn_output_bias");
    w->attn_post_norm = vector(c.post_norms, c.model_dim, "attn_post_norm");
    w->ffn_norm = vector(true, c.model_dim, "ffn_norm");
    w->gate_up = layer_matrix(c.model_dim, {{"ffn_gate", c.ffn_dim}, {"ffn_up", c.ffn_dim}});
    w->gate_up_bias = vector(c.mlp_bias, 2 * int64_t{c.ffn_dim}, "");
    if (c.mlp_bias) {
      elements(w->gate_up_bias, "ffn_gate_bias");
      elements(w->gate_up_bias + c.ffn_dim, "ffn_up_bias");
    }
    w->down = layer_matrix(c.ffn_dim, {{"ffn_down", c.model_dim}});
    w->down_bias = vector(c.mlp_bias, c.model_dim, "ffn_down_bias");
    w->ffn_post_norm = vector(c.post_norms, c.model_dim, "ffn_post_norm");
  }

  std::byte* take(int64_t bytes) {
    const uintptr_t place = at_;
    at_ += static_cast<uintptr_t>((bytes + kAlign - 1) / kAlign * kAlign);
    return reinterpret_cast<std::byte*>(place);
  }
  // The rows of the named tensors: a part for each run of one type.
  Matrix matrix(int64_t cols, std::initializer_list<Rows> tensors) {
    Matrix m{.cols = cols};
    const Rows* next = tensors.begin();
    while (next != tensors.end()) {
      const core::DType type = type_of(*next);
      const Rows* const begin = next;
      int64_t num_rows = 0;
      // Packed rows of the next tensor begin where a tile does.
      while (next != tensors.end() && type_of(*next) == type &&
             (type == core::DType::kBF16 || num_rows % kTileRows == 0)) {
        num_rows += (next++)->count;
      }
      std::byte* to = take(matrix_bytes(type, num_rows, cols));
      m.weights[static_cast<size_t>(m.num_parts++)] = {type, to, num_rows, cols};
      m.rows += num_rows;
      for (const Rows* tensor = begin; tensor != next; ++tensor) {
        pieces_.push_back({prefix_ + tensor->name, to, false, type});
        to += matrix_bytes(type, tensor->count, cols);
      }
    }
    return m;
  }
  // The same where weights may be e4m3: one part, with a scale a row behind all codes.
  Matrix layer_matrix(int64_t cols, std::initializer_list<Rows> tensors) {
    if (as_ != WeightsAs::kFp8) return matrix(cols, tensors);
    Matrix m{.num_parts = 1, .cols = cols};
    for (const Rows& tensor : tensors) m.rows += tensor.count;
    std::byte* const data = take(ops::cuda::fp8_weight_bytes(m.rows, cols));
    m.weights[0] = {core::DType::kF8E4M3, data, m.rows, cols};
    float* scales = ops::cuda::fp8_weight_rows(data, m.rows, cols).scales;
    std::byte* to = data;
    for (const Rows& tensor : tensors) {
      pieces_.push_back({prefix_ + tensor.name, to, false, core::DType::kF8E4M3, scales});
      to += tensor.count * ops::cuda::fp8_cols(cols);
      scales += tensor.count;
    }
    return m;
  }
  core::DType type_of(const Rows& rows) const {
    if (as_ != WeightsAs::kQuantised) return core::DType::kBF16;
    const core::DType type = tensor_of(files_, prefix_ + rows.name).type;
    return ops::cuda::can_stay_quantised(type) ? type : core::DType::kBF16;
  }
  float* vector(bool wanted, int64_t width, const std::string& name) {
    if (!wanted) return nullptr;
    auto* const v = reinterpret_cast<float*>(take(width * 4));
    if (!name.empty()) elements(v, name);
    return v;
  }
  void elements(float* to, const std::string& name) {
    pieces_.push_back({prefix_ + name, reinterpret_cast<std::byte*>(to), true});
  }

  const load::ModelFiles& files_;
  const core::ModelConfig& config_;
  const WeightsAs as_;
  uintptr_t at_;
  const uintptr_t begin_;
  std::string prefix_;
  std::vector<Piece> pieces_;
};

// One row of a matrix in BF16. `floats` (cols) is scratch.
void convert_row(core::DType type, const std::byte* row, int64_t cols, float* floats,
                 std::byte* to) {
  if (type == core::DType::kBF16) {
    std::memcpy(to, row, static_cast<size_t>(cols) * 2);
    return;
  }
  ops::reference::dequantize_row(type, row, cols, floats);
  auto* const out = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < cols; ++i) out[i] = ops::reference::float_to_bfloat16(floats[i]);
}

class Uploader {
 public:
  static base::Result<Uploader> create(device::cuda::Stream& stream, base::ThreadPool& pool,
                                       WeightsAs as) {
    Uploader made(stream, pool);
    if (as == WeightsAs::kFp8) {
      ASSIGN_OR_RETURN(made.bf16_,
                       device::cuda::Buffer::allocate(kStagingBytes, "weights in BF16"));
    }
    for (Staging& s : made.staging_) {
      ASSIGN_OR_RETURN(s.buffer,
                       device::cuda::PinnedBuffer::allocate(kStagingBytes, "loading weights"));
      ASSIGN_OR_RETURN(s.copied, device::cuda::Event::create());
    }
    made.floats_.resize(static_cast<size_t>(pool.num_threads()));
    return made;
  }

  // In BF16, or (with `scales` for its rows) in e4m3.
  base::Result<void> matrix(const load::Tensor& tensor, std::byte* to, float* scales) {
    const int64_t num_rows = tensor.shape[0], cols = tensor.shape[1];
    const ops::WeightView view{
        tensor.type, num_rows, cols, tensor.bytes.data(), {tensor.rope_interleaved_head_dim}};
    const int64_t from_bytes = core::row_bytes(tensor.type, cols), to_bytes = cols * 2;
    CHECK(to_bytes <= kStagingBytes, "a row of {} elements", cols);
    for (auto& floats : floats_) floats.resize(static_cast<size_t>(cols));
    const int64_t chunk_rows = kStagingBytes / to_bytes;
    const int64_t item_rows = std::max<int64_t>(1, kItemBytes / to_bytes);
    for (int64_t begin = 0; begin < num_rows; begin += chunk_rows) {
      const int64_t count = std::min(chunk_rows, num_rows - begin);
      ASSIGN_OR_RETURN(std::byte* const staged, next());
      const auto convert = [&](int64_t item, int worker) {
        float* const floats = floats_[static_cast<size_t>(worker)].data();
        const int64_t end = std::min(count, (item + 1) * item_rows);
        for (int64_t i = item * item_rows; i < end; ++i) {
          const std::byte* const row = view.data + ops::file_row(view, begin + i) * from_bytes;
          convert_row(tensor.type, row, cols, floats, staged + i * to_bytes);
        }
      };
      pool_.parallel_for((count + item_rows - 1) / item_rows, convert);
      if (scales == nullptr) {
        send(to + begin * to_bytes, count * to_bytes);
        continue;
      }
      send(bf16_.data(), count * to_bytes);
      ops::cuda::quantise_rows(
          stream_.handle(),
          {.x = bf16_.as<__nv_bfloat16>(), .x_stride = cols, .rows = count, .width = cols},
          {reinterpret_cast<uint8_t*>(to + begin * ops::cuda::fp8_cols(cols)), scales + begin});
    }
    return {};
  }

  // A matrix that stays quantised: tiles of rows.
  base::Result<void> packed_matrix(const load::Tensor& tensor, std::byte* to) {
    const int64_t num_rows = tensor.shape[0], cols = tensor.shape[1];
    const ops::WeightView view{
        tensor.type, num_rows, cols, tensor.bytes.data(), {tensor.rope_interleaved_head_dim}};
    const int64_t from_bytes = core::row_bytes(tensor.type, cols);
    const int64_t tile_bytes = ops::cuda::quantised_bytes(tensor.type, kTileRows, cols);
    CHECK(tile_bytes <= kStagingBytes, "{} rows of {} elements", kTileRows, cols);
    const int64_t num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    const int64_t chunk_tiles = kStagingBytes / tile_bytes;
    for (int64_t begin = 0; begin < num_tiles; begin += chunk_tiles) {
      const int64_t count = std::min(chunk_tiles, num_tiles - begin);
      ASSIGN_OR_RETURN(std::byte* const staged, next());
      pool_.parallel_for(count, [&](int64_t item, int) {
        std::array<const std::byte*, kTileRows> rows{};
        for (int64_t i = 0; i < kTileRows; ++i) {
          const int64_t row = (begin + item) * kTileRows + i;
          if (row >= num_rows) break;
          rows[static_cast<size_t>(i)] = view.data + ops::file_row(view, row) * from_bytes;
        }
        ops::cuda::pack_quantised(tensor.type, rows, cols, staged + item * tile_bytes);
      });
      send(to + begin * tile_bytes, count * tile_bytes);
    }
    return {};
  }

  base::Result<void> vector(const load::Tensor& tensor, std::byte* to) {
    const int64_t width = tensor.shape[0];
    CHECK(width * 4 <= kStagingBytes, "a vector of {} elements", width);
    std::vector<float> stored(static_cast<size_t>(width));
    ops::reference::dequantize_row(tensor.type, tensor.bytes.data(), width, stored.data());
    const ops::WeightView order{tensor.type, width, 1, nullptr, {tensor.rope_interleaved_head_dim}};
    ASSIGN_OR_RETURN(std::byte* const staged, next());
    auto* const out = reinterpret_cast<float*>(staged);
    for (int64_t i = 0; i < width; ++i) {
      const float value = stored[static_cast<size_t>(ops::file_row(order, i))];
      out[i] = tensor.stored_less_one ? 1.0f + value : value;
    }
    send(to, width * 4);
    return {};
  }

 private:
  struct Staging {
    device::cuda::PinnedBuffer buffer;
    device::cuda::Event copied;
    bool busy = false;
  };
  Uploader(device::cuda::Stream& stream, base::ThreadPool& pool) : stream_(stream), pool_(pool) {}

  // A pinned buffer that no copy reads any more.
  base::Result<std::byte*> next() {
    Staging& s = staging_[at_];
    if (s.busy) RETURN_IF_ERROR(s.copied.synchronize());
    s.busy = false;
    return s.buffer.data();
  }
  void send(std::byte* to, int64_t bytes) {
    Staging& s = staging_[at_];
    stream_.copy(to, s.buffer.data(), bytes);
    stream_.record(s.copied);
    s.busy = true;
    at_ ^= 1;
  }

  device::cuda::Stream& stream_;
  base::ThreadPool& pool_;
  std::array<Staging, 2> staging_;
  size_t at_ = 0;
  std::vector<std::vector<float>> floats_;  // by worker
  device::cuda::Buffer bf16_;               // rows on their way to e4m3
};

base::Result<void> load_piece(Uploader& upload, const load::Tensor& tensor, const Piece& piece) {
  if (piece.is_vector) return upload.vector(tensor, piece.to);
  if (ops::cuda::can_stay_quantised(piece.type)) return upload.packed_matrix(tensor, piece.to);
  return upload.matrix(tensor, piece.to, piece.scales);
}

}  // namespace

bool has_quantised(const load::ModelFiles& files) {
  return std::ranges::any_of(files.tensors, [](const auto& named) {
    return named.second.shape.size() == 2 && ops::cuda::can_stay_quantised(named.second.type);
  });
}

int64_t weight_bytes(const load::ModelFiles& files, WeightsAs as) {
  DecoderWeights w;
  Planner planner(files, as, nullptr);
  planner.plan(&w);
  return planner.bytes();
}

base::Result<DecoderWeights> load_weights(device::cuda::Stream& stream, base::ThreadPool& pool,
                                          const load::ModelFiles& files, WeightsAs as,
                                          const LoadProgress& progress) {
  DecoderWeights w;
  ASSIGN_OR_RETURN(w.memory,
                   device::cuda::Buffer::allocate(weight_bytes(files, as), "the weights"));
  Planner planner(files, as, w.memory.data());
  planner.plan(&w);
  ASSIGN_OR_RETURN(Uploader upload, Uploader::create(stream, pool, as));
  int64_t done = 0;
  for (const Piece& piece : planner.pieces()) {
    const load::Tensor& tensor = tensor_of(files, piece.name);
    CHECK(tensor.shape.size() == (piece.is_vector ? 1u : 2u), "{}", piece.name);
    RETURN_IF_ERROR(load_piece(upload, tensor, piece));
    if (tensor.file != nullptr) tensor.file->drop(tensor.bytes);
    done += static_cast<int64_t>(tensor.bytes.size());
    if (progress) progress(done, files.weight_bytes);
  }
  if (files.config.scaled_embeddings) {
    w.embedding_scale =
        embedding_scale(files.config.model_dim, files.tensors.at("token_embd").type);
  }
  RETURN_IF_ERROR(stream.synchronize());
  return w;
}

}  // namespace model::cuda
