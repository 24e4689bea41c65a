// Any bytes as what a model hub answers: a listing whose names all stay inside a folder, or one
// line that says why not; the same for an index of weights, and for what people type.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "hub/listing.h"
#include "hub/repo_name.h"

namespace {

void check_message(const base::Error& error) {
  CHECK(!error.message.empty());
  CHECK(error.message.find('\n') == std::string::npos, "{}", error.message);
}

void check_choices(const hub::Listing& listing) {
  CHECK(hub::is_commit(listing.commit));
  for (const hub::RepoFile& file : listing.files) {
    CHECK(hub::is_repo_path(file.path));
    CHECK(file.size_bytes.value_or(0) >= 0);
    CHECK(file.checksum.empty() || file.checksum.size() == 40 || file.checksum.size() == 64);
  }
  CHECK(hub::side_files(listing).size() <= listing.files.size());
  const auto checked = hub::check_has_safetensors("org/name", listing);
  if (!checked.ok()) check_message(checked.error());
  for (const char* wanted : {"Q4_K_M", "gguf", "m.gguf"}) {
    const auto chosen = hub::choose_gguf("org/name", listing, wanted);
    if (!chosen.ok()) check_message(chosen.error());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto listing = hub::parse_listing("fuzz", text);
  listing.ok() ? check_choices(*listing) : check_message(listing.error());
  const auto shards = hub::parse_shards("fuzz", text);
  if (!shards.ok()) {
    check_message(shards.error());
  } else {
    for (const std::string& shard : *shards) CHECK(shard.find('/') == shard.npos);
  }
  const auto name = hub::parse_repo_name(text);
  if (!name.ok()) {
    check_message(name.error());
  } else {
    CHECK(hub::is_repo_path(name->id) && hub::is_repo_path(name->revision));
    CHECK(name->file.empty() || hub::is_repo_path(name->file));
  }
  return 0;
}
