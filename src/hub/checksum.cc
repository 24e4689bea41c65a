#include "hub/checksum.h"

#include <errno.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <string.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

namespace hub {
namespace {

base::Result<std::string> digest_of_file(const EVP_MD* method, std::string_view header,
                                         const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return base::error(base::Code::kIo, "cannot read {}: {}", path, strerror(errno));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(),
                                                                       EVP_MD_CTX_free);
  CHECK(digest != nullptr);
  CHECK(EVP_DigestInit_ex(digest.get(), method, nullptr) == 1);
  CHECK(EVP_DigestUpdate(digest.get(), header.data(), header.size()) == 1);
  std::vector<char> chunk(1 << 20);
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    CHECK(EVP_DigestUpdate(digest.get(), chunk.data(), static_cast<size_t>(file.gcount())) == 1);
  }
  if (!file.eof()) return base::error(base::Code::kIo, "cannot read {}: {}", path, strerror(errno));
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(digest.get(), bytes.data(), &size) == 1);
  return fmt::format("{:02x}", fmt::join(bytes.data(), bytes.data() + size, ""));
}

}  // namespace

base::Result<std::string> sha256_of_file(const std::string& path) {
  return digest_of_file(EVP_sha256(), "", path);
}

base::Result<std::string> git_blob_id_of_file(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return base::error(base::Code::kIo, "cannot read {}: {}", path, error.message());
  const std::string header = fmt::format("blob {}", size);
  // The NUL between header and bytes is part of it.
  return digest_of_file(EVP_sha1(), std::string_view(header.c_str(), header.size() + 1), path);
}

}  // namespace hub
