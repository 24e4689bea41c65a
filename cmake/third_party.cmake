# Libraries that Debian 12 does not have, built from the sources that tools/third_party fetched (tools/setup calls it), which all
# checkouts share. With the sanitizers of the build, for what reads foreign bytes, and without our warnings.
#
# SPILLWAY_THIRD_PARTY: where their folders NAME-VERSION lie.
set(SPILLWAY_THIRD_PARTY "$ENV{HOME}/.cache/spillway/third_party" CACHE PATH "Folder of tools/third_party")

set(xgrammar_dir ${SPILLWAY_THIRD_PARTY}/xgrammar-0.2.8)
if(NOT EXISTS ${xgrammar_dir}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "The sources of XGrammar are not in ${xgrammar_dir}: run tools/third_party, which fetches them from PyPI")
endif()
file(GLOB_RECURSE xgrammar_sources ${xgrammar_dir}/cpp/*.cc)
set(parser ${xgrammar_dir}/cpp/earley_parser.cc)
set(counting_parser ${CMAKE_CURRENT_BINARY_DIR}/xgrammar/earley_parser.cc)
add_custom_command(OUTPUT ${counting_parser}
  COMMAND ${CMAKE_COMMAND} -DINPUT=${parser} -DOUTPUT=${counting_parser} -P ${CMAKE_SOURCE_DIR}/cmake/count_parser_work.cmake
  DEPENDS ${parser} ${CMAKE_SOURCE_DIR}/cmake/count_parser_work.cmake ${CMAKE_SOURCE_DIR}/cmake/change_source.cmake VERBATIM)
set(converter ${xgrammar_dir}/cpp/json_schema_converter.cc)
set(plain_converter ${CMAKE_CURRENT_BINARY_DIR}/xgrammar/json_schema_converter.cc)
add_custom_command(OUTPUT ${plain_converter}
  COMMAND ${CMAKE_COMMAND} -DINPUT=${converter} -DOUTPUT=${plain_converter} -P ${CMAKE_SOURCE_DIR}/cmake/plain_json_patterns.cmake
  DEPENDS ${converter} ${CMAKE_SOURCE_DIR}/cmake/plain_json_patterns.cmake ${CMAKE_SOURCE_DIR}/cmake/change_source.cmake VERBATIM)
list(REMOVE_ITEM xgrammar_sources ${parser} ${converter})
set(encoding ${xgrammar_dir}/cpp/support/encoding.h)
set(safe_encoding ${CMAKE_CURRENT_BINARY_DIR}/xgrammar/encoding.h)
add_custom_command(OUTPUT ${safe_encoding}
  COMMAND ${CMAKE_COMMAND} -DINPUT=${encoding} -DOUTPUT=${safe_encoding} -P ${CMAKE_SOURCE_DIR}/cmake/four_digit_escapes.cmake
  DEPENDS ${encoding} ${CMAKE_SOURCE_DIR}/cmake/four_digit_escapes.cmake ${CMAKE_SOURCE_DIR}/cmake/change_source.cmake VERBATIM)
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources} ${counting_parser} ${plain_converter} ${safe_encoding})
target_include_directories(xgrammar PRIVATE ${xgrammar_dir}/cpp)
target_include_directories(xgrammar SYSTEM PUBLIC ${xgrammar_dir}/include ${xgrammar_dir}/3rdparty/picojson ${xgrammar_dir}/3rdparty/dlpack/include)
target_compile_definitions(xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Errors and warnings come to src/grammar/library_log.cc.
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1)
# Its own standard: as C++20 clang looks into variants of types that are not complete yet.
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17)
# The header's guard keeps out the one beside the sources.
target_compile_options(xgrammar PRIVATE -include ${safe_encoding})
target_compile_options(xgrammar PRIVATE -w $<$<CONFIG:Release>:-O2>)
target_link_libraries(xgrammar PUBLIC Threads::Threads)
if(SPILLWAY_SANITIZE)
  target_compile_options(xgrammar PRIVATE -fsanitize=${SPILLWAY_SANITIZE} -fno-omit-frame-pointer -g)
endif()
