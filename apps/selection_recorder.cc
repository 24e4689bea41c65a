#include "apps/selection_recorder.h"

namespace apps {

SelectionRecorder::~SelectionRecorder() {
  if (file_ != nullptr) std::fclose(file_);
}

base::Result<void> SelectionRecorder::write_to(const std::string& path, const TraceHeader& header) {
  path_ = path;
  num_kv_heads_ = header.num_kv_heads;
  file_ = std::fopen(path.c_str(), "w");
  if (file_ == nullptr) return base::error(base::Code::kIo, "{}: cannot be written", path);
  failed_ |= std::fputs(format_trace_header(header).c_str(), file_) < 0;
  return {};
}

base::Result<void> SelectionRecorder::close() {
  if (file_ == nullptr) return {};
  if (row_) write_row();
  failed_ |= std::fclose(file_) != 0;
  file_ = nullptr;
  if (failed_) return base::error(base::Code::kIo, "{}: not all could be written", path_);
  return {};
}

void SelectionRecorder::write_row() {
  failed_ |= std::fputs(format_trace_row(*row_).c_str(), file_) < 0;
  row_.reset();
}

void SelectionRecorder::saw(const exec::SelectionPlace& place, std::span<const int32_t> pages) {
  stats_.add({core::number(place.seq), place.layer, place.head}, pages);
  if (file_ == nullptr) return;
  const bool same = row_ && row_->sequence == core::number(place.seq) &&
                    row_->position == place.position && row_->layer == place.layer;
  if (row_ && !same) write_row();
  if (!row_) {
    row_ = TraceRow{.sequence = core::number(place.seq),
                    .position = place.position,
                    .layer = place.layer,
                    .pages = {}};
    row_->pages.resize(static_cast<size_t>(num_kv_heads_));
  }
  row_->pages[static_cast<size_t>(place.head)].assign(pages.begin(), pages.end());
}

int32_t SelectionRecorder::choose(const exec::SelectionPlace& place, int32_t* pages,
                                  int32_t count) const {
  if (!trace_) return count;
  return trace_->replay(core::number(place.seq), place.position, place.layer, place.head, pages,
                        count);
}

}  // namespace apps
