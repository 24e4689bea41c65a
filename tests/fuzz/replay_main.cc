// Runs a fuzz target over every file of the folders given, in the order of their names: what the
// fuzzer does with a corpus, in any build and without libFuzzer. Ends with status 1 when there was
// nothing to run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::vector<std::string> files_under(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void run(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> read{std::istreambuf_iterator<char>(stream), {}};
  // An allocation of exactly the file's size, so that a sanitizer sees reads past its end.
  const std::vector<uint8_t> bytes(read.begin(), read.end());
  std::fprintf(stderr, "%s: %zu bytes\n", path.c_str(), bytes.size());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::string& file : files_under(argv[i])) {
      run(file);
      ++files;
    }
  }
  std::printf("%d files replayed\n", files);
  return files > 0 ? 0 : 1;
}
