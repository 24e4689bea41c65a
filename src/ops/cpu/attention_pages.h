// Where the keys of a block lie and which of them a row sees, written once over `Isa` and `Kv` as
// attention_tile.h is.
//
// Of quantised pages a row sees its own page in BF16 and all earlier ones as codes. Prompt rows
// meet them in two passes over a block, each a step of the online softmax of its own: first the
// sealed keys, then the open ones of each row's own page. Sealed keys are staged: their codes
// become rows of BF16 in scratch, and from there on they are like any other.
//
// Further names of Isa: store_bf16, load_i8, load_e4m3 (times 2^-8). Of Kv: kBf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/attention_kernels.h"

namespace ops::cpu {
namespace {

// Which keys of a block are seen: those of [first, end) that are below `sink` or not below `begin`;
// all counted from the block's first key and not bounded by it.
struct Seen {
  int32_t first, sink, begin, end;

  // Whether one of `count` keys from `key` on is seen.
  bool any(int32_t key, int32_t count) const {
    const int32_t from = first > key ? first : key;
    const int32_t to = end < key + count ? end : key + count;
    return from < to && (from < sink || begin < to);
  }
  bool nothing() const { return !any(0, kKeyBlock); }
};

// The keys of quantised pages that prompt rows meet in one pass over a block; kAll: of all others.
enum class Pass { kAll, kSealed, kOpen };

// What the rows of positions [from, to] see together.
inline Seen seen_by(const AttentionTile& tile, Pass pass, int32_t from, int32_t to, int32_t key) {
  const int32_t page_tokens = tile.pages.page_tokens;
  return {(pass == Pass::kOpen ? from / page_tokens * page_tokens : 0) - key, tile.sink - key,
          from - tile.local + 1 - key,
          (pass == Pass::kSealed ? to / page_tokens * page_tokens : to + 1) - key};
}
inline Seen seen_by(const AttentionTile& tile, Pass pass, int32_t key) {
  return seen_by(tile, pass, tile.position_begin, tile.position_begin + tile.rows - 1, key);
}

template <class Isa, class Kv>
struct PageKernel {
  using F = typename Isa::F;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kGroups = kKeyBlock / kLanes;

  // kLanes neighbouring keys of a page: the first one's rows of K and V, others behind them. Null
  // where no row sees a key.
  struct Group {
    const std::byte* keys;
    const std::byte* values;
  };

  static int64_t row_bytes(const KvPages& pages) { return int64_t{pages.head_dim} * Kv::kBytes; }

  static const std::byte* page_of(const KvPages& pages, int32_t key) {
    int32_t page = key / pages.page_tokens;
    if (page >= pages.gap_begin) page += pages.gap_pages;
    return pages.base + pages.frames[page] * pages.page_bytes;
  }

  static Group rows_of(const KvPages& pages, const std::byte* page, int32_t key) {
    const std::byte* keys = page + key % pages.page_tokens * row_bytes(pages);
    return {keys, keys + pages.page_tokens * row_bytes(pages)};
  }

  static Group open_rows_of(const KvPages& pages, int32_t key) {
    const int32_t frame = pages.open_frames[key / pages.page_tokens - pages.open_page];
    return rows_of(pages, pages.open_base + frame * 2 * pages.page_tokens * row_bytes(pages), key);
  }

  static void locate(const AttentionTile& tile, Pass pass, const Seen& seen, int32_t key,
                     Group (&groups)[kGroups]) {
    for (int i = 0; i < kGroups; ++i) {
      if (!seen.any(i * kLanes, kLanes)) {
        groups[i] = {nullptr, nullptr};
      } else if (pass == Pass::kAll) {
        groups[i] = rows_of(tile.pages, page_of(tile.pages, key + i * kLanes), key + i * kLanes);
      } else if (pass == Pass::kOpen) {
        groups[i] = open_rows_of(tile.pages, key + i * kLanes);
      } else {
        groups[i] = stage(tile, i, key + i * kLanes);
      }
    }
  }

  // Codes of a sealed page from a key on.
  static Group codes_of(const KvPages& pages, int32_t key) {
    const std::byte* keys = page_of(pages, key) + key % pages.page_tokens * pages.head_dim;
    return {keys, keys + pages.page_tokens * pages.head_dim};
  }

  // The keys of group `group` of a block as rows of BF16.
  static Group stage(const AttentionTile& tile, int group, int32_t key) {
    const KvPages& pages = tile.pages;
    const Group codes = codes_of(pages, key);
    const auto* scales = reinterpret_cast<const float*>(page_of(pages, key) +
                                                        2 * pages.page_tokens * pages.head_dim);
    std::byte* keys = tile.scratch.staged + int64_t{group} * kLanes * row_bytes(pages);
    std::byte* values = keys + kKeyBlock * row_bytes(pages);
    const auto decode = pages.codes == KvCodes::kI8 ? decode_rows<I8> : decode_rows<E4m3>;
    decode(codes.keys, scales, true, pages.head_dim, keys);
    decode(codes.values, scales + pages.head_dim, false, pages.head_dim, values);
    return {keys, values};
  }

  struct I8 {
    static constexpr float kUnit = 1.0f;
    static F load(const std::byte* codes) { return Isa::load_i8(codes); }
    static void load(const std::byte* codes, F (&x)[2]) {
      x[0] = Isa::load_i8(codes);
      x[1] = Isa::load_i8(codes + kLanes);
    }
  };
  struct E4m3 {
    static constexpr float kUnit = 256.0f;
    static F load(const std::byte* codes) { return Isa::load_e4m3(codes); }
    static void load(const std::byte* codes, F (&x)[2]) { Isa::load_e4m3(codes, x); }
  };

  // kLanes rows of codes times their scales, one a channel or one for all.
  template <class Codes>
  static void decode_rows(const std::byte* codes, const float* scales, bool per_channel,
                          int32_t head_dim, std::byte* out) {
    const auto scale_at = [&](int32_t c) {
      return Isa::mul(per_channel ? Isa::load(scales + c) : Isa::set1(*scales),
                      Isa::set1(Codes::kUnit));
    };
    int32_t c = 0;
    for (; c + 2 * kLanes <= head_dim; c += 2 * kLanes) {
      const F first = scale_at(c), second = scale_at(c + kLanes);
      for (int i = 0; i < kLanes; ++i) {
        const int64_t at = int64_t{i} * head_dim + c;
        F x[2];
        Codes::load(codes + at, x);
        Isa::store_bf16(out + 2 * at, Isa::mul(x[0], first), Isa::mul(x[1], second));
      }
    }
    for (; c < head_dim; c += kLanes) {
      const F scale = scale_at(c);
      for (int i = 0; i < kLanes; ++i) {
        const int64_t at = int64_t{i} * head_dim + c;
        Isa::store_bf16(out + 2 * at, Isa::mul(Codes::load(codes + at), scale));
      }
    }
  }
};

}  // namespace
}  // namespace ops::cpu
