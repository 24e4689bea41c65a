// The table of a layer buffer's frames (exec/cuda/layer_buffer.h), made on the GPU.
#pragma once

#include <cstdint>

#include "device/cuda/runtime.h"

namespace exec::cuda {

struct ListBufferArgs {
  const int32_t* rows = nullptr;     // of the buffer; readable by the GPU
  const int32_t* columns = nullptr;  // (Hk) of the layer, on the device; -1: the head has none
  int32_t num_heads = 0;             // Hk
  int32_t first_column = 0, layer_columns = 0;
  int32_t num_columns = 0;              // C
  const int32_t* rows_table = nullptr;  // of the slot: pages [0, shared) stand there
  int32_t shared = 0;
  int32_t num_pages = 0;
  int32_t pages_max = 0;     // stride of `table`
  int32_t* table = nullptr;  // (Hk, pages_max) flat frames
};
void list_buffer(cudaStream_t stream, const ListBufferArgs& args);

}  // namespace exec::cuda
