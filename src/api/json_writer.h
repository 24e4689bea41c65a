// JSON out, by hand: the bytes of a stream's events are made here, once per token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace api {

// Appends `text` as a JSON string. Valid UTF-8 passes through and each bad run becomes U+FFFD, so
// the output is always valid.
void append_json_string(std::string& out, std::string_view text);

void append_json_int(std::string& out, int64_t value);
// Shortest form that reads back equal. -inf and below -9999 become -9999 (JSON has no infinity;
// clients expect this number).
void append_json_logprob(std::string& out, float value);

// Characters in `text`, a bad run counting as one.
int64_t utf8_length(std::string_view text);

}  // namespace api
