# The CUDA back end, on with SPILLWAY_CUDA (the preset cuda-release). cudart is linked in statically, cuBLASLt is loaded at run
# time, so the program starts on machines without a GPU.
#
# SPILLWAY_CUDA_ARCHITECTURES: 90a carries the Hopper kernels; 80 and 89 run the portable ones.
set(SPILLWAY_CUDA_ARCHITECTURES "80-real;89-real;90a-real" CACHE STRING "GPU architectures to compile for")
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

# cuda_component(NAME FOLDER SOURCES ... DEPS ... TESTS ... [LIBS ...]): spillway_NAME from src/FOLDER, which may hold .cu files.
# Its tests need a GPU: they are built with everything and run by tools/gpu_check, under the label "gpu".
function(cuda_component name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;TESTS;LIBS" ${ARGN})
  add_library(spillway_${name} STATIC ${arg_SOURCES})
  target_include_directories(spillway_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  spillway_cuda_options(spillway_${name})
  foreach(dep ${arg_DEPS})
    target_link_libraries(spillway_${name} PUBLIC spillway_${dep})
  endforeach()
  target_link_libraries(spillway_${name} PUBLIC CUDA::cudart_static ${arg_LIBS})
  foreach(test ${arg_TESTS})
    spillway_cuda_test(${test} LIBS spillway_${name})
  endforeach()
endfunction()

# One GoogleTest program that needs a GPU, from one .cc or .cu file.
function(spillway_cuda_test file)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  get_filename_component(test ${file} NAME_WE)
  add_executable(${test} ${file})
  spillway_cuda_options(${test})
  target_include_directories(${test} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${test} PRIVATE ${arg_LIBS} CUDA::cudart_static GTest::gmock GTest::gtest_main)
  add_test(NAME ${test} COMMAND ${test})
  set_tests_properties(${test} PROPERTIES LABELS "gpu" TIMEOUT 300)
endfunction()

# A measurement on a GPU.
function(spillway_cuda_bench file)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  get_filename_component(bench ${file} NAME_WE)
  add_executable(${bench} ${file})
  spillway_cuda_options(${bench})
  target_include_directories(${bench} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${bench} PRIVATE ${arg_LIBS} CUDA::cudart_static)
endfunction()

function(spillway_cuda_options target)
  # fmt 9 leaves its compile-time checks out under nvcc and then fails: FMT_ defines below. CMake 3.25 does not know how
  # this nvcc is asked for C++20: the flag is given below too.
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${SPILLWAY_CUDA_ARCHITECTURES}" CUDA_STANDARD_REQUIRED OFF)
  set(host "-Wall;-Wextra;-Wshadow;-Wno-missing-field-initializers")
  if(SPILLWAY_WERROR)
    list(APPEND host "-Werror")
  endif()
  list(JOIN host "," host_commas)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${host}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-DFMT_USE_CONSTEXPR=1;-DFMT_CONSTEVAL=;-Xcompiler=${host_commas};--expt-relaxed-constexpr;-lineinfo;--threads=1>")

endfunction()
