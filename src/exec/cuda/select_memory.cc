#include "exec/cuda/select_memory.h"

namespace exec::cuda {
namespace {

// Bytes of each array in a slot.
struct SlotBytes {
  int64_t pages = 0;  // selected_at, frame_of, page_of
  int64_t kept = 0, num_kept = 0;
};

SlotBytes bytes_of_slot(const KvOptions& options) {
  const int64_t columns = options.selecting_columns().num_columns();
  return {.pages = columns * options.pages_max() * 4,
          .kept = columns * options.selected_max() * 4,
          .num_kept = columns * 4};
}

}  // namespace

int64_t SelectMemory::slot_bytes(const KvOptions& options, bool tiered) {
  const SlotBytes bytes = bytes_of_slot(options);
  return bytes.pages * (tiered ? 3 : 1) + bytes.kept + bytes.num_kept;
}

base::Result<SelectMemory> SelectMemory::create(device::cuda::Stream& stream,
                                                const KvOptions& options, bool tiered) {
  SelectMemory made;
  const SlotBytes slot = bytes_of_slot(options);
  const int64_t slots = options.max_num_seqs;
  made.slots_ = SelectionSlots(options.max_num_seqs);
  const auto allocate = [&](int64_t bytes, device::cuda::Buffer* to) -> base::Result<void> {
    ASSIGN_OR_RETURN(*to, device::cuda::Buffer::allocate(bytes * slots, "selections"));
    stream.fill(to->data(), 0, bytes * slots);
    return {};
  };
  RETURN_IF_ERROR(allocate(slot.pages, &made.selected_at_));
  RETURN_IF_ERROR(allocate(slot.kept, &made.kept_));
  RETURN_IF_ERROR(allocate(slot.num_kept, &made.num_kept_));
  if (tiered) {
    RETURN_IF_ERROR(allocate(slot.pages, &made.frame_of_));
    RETURN_IF_ERROR(allocate(slot.pages, &made.page_of_));
  }
  made.state_ = {.pages_max = options.pages_max(),
                 .frames_max = options.pages_max(),
                 .kept_max = options.selected_max(),
                 .num_columns = options.selecting_columns().num_columns(),
                 .frame_of = made.frame_of_.as<int32_t>(),
                 .selected_at = made.selected_at_.as<uint32_t>(),
                 .page_of = made.page_of_.as<int32_t>(),
                 .kept = made.kept_.as<int32_t>(),
                 .num_kept = made.num_kept_.as<int32_t>()};
  return made;
}

bool SelectMemory::begin_rows(device::cuda::Stream& stream, int32_t slot, core::SeqId seq,
                              int32_t token_begin, int32_t selecting_begin, int32_t token_end) {
  const auto begin = slots_.begin_rows(slot, seq, token_begin, selecting_begin, token_end);
  if (begin == SelectionSlots::Begin::kAfresh) {
    const int64_t stamps = int64_t{state_.num_columns} * state_.pages_max;
    stream.fill(state_.selected_at + slot * stamps, 0, stamps * 4);
    stream.fill(state_.num_kept + int64_t{slot} * state_.num_columns, 0, state_.num_columns * 4);
  }
  return begin == SelectionSlots::Begin::kContinues;
}

}  // namespace exec::cuda
