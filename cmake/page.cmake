# The page's files as C++: `cmake -DFOLDER=... -DOUTPUT=... -P page.cmake` writes api::page_files() (src/api/page.h).
file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*.html ${FOLDER}/*.css ${FOLDER}/*.js)
list(SORT names)
set(arrays "")
set(rows "")
foreach(name ${names})
  file(READ ${FOLDER}/${name} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${name} id)
  string(APPEND arrays "constexpr unsigned char ${id}[] = {${bytes}};\n")
  set(path "/page/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
    set(type "text/html; charset=utf-8")
  elseif(name MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  else()
    set(type "text/javascript; charset=utf-8")
  endif()
  string(APPEND rows "      {\"${path}\", \"${type}\", text(${id}, sizeof ${id})},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/page.cmake.
#include \"api/page.h\"

namespace api {
namespace {
${arrays}
std::string_view text(const unsigned char* bytes, size_t count) {
  return {reinterpret_cast<const char*>(bytes), count};
}
}  // namespace

std::span<const PageFile> page_files() {
  static const PageFile files[] = {
${rows}  };
  return files;
}
}  // namespace api
")
