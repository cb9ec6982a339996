# muster_cuda(gpu/a.cu gpu/b.cu HEADERS gpu/kernels.h) compiles kernels for GPUs into muster. Does nothing unless MUSTER_CUDA_KERNELS is ON: libtorch has
# CUDA, and there is an nvcc of the same version, so that both use one CUDA runtime. CMake's own support of CUDA is of no use here,
# since it hands nvcc what the C++ compiler is called with.
# REQUIRES: Libtorch is included before.

# Leaves in `to` how nvcc is told of the C++ compiler, which it takes if that is GCC.
function(_muster_nvcc_host to)
  set(${to} PARENT_SCOPE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(${to} -ccbin "${CMAKE_CXX_COMPILER}" PARENT_SCOPE)
  endif()
endfunction()

option(MUSTER_GPU_KERNELS "Compile kernels of our own for GPUs where there is an nvcc of libtorch's CUDA" ON)
set(MUSTER_CUDA_KERNELS OFF)
if(MUSTER_GPU_KERNELS AND MUSTER_CUDA AND MUSTER_NVCC AND MUSTER_CUDA_HEADERS)
  execute_process(COMMAND ldd "${MUSTER_LIBTORCH_ROOT}/lib/libtorch_cuda.so" OUTPUT_VARIABLE _needs ERROR_QUIET)
  execute_process(COMMAND "${MUSTER_NVCC}" --version OUTPUT_VARIABLE _nvcc ERROR_QUIET)
  if(_needs MATCHES "=> ([^ \n]*libcudart[^ \n]*)")
    set(MUSTER_CUDA_RUNTIME "${CMAKE_MATCH_1}")
  endif()
  if(MUSTER_CUDA_RUNTIME MATCHES "[.]so[.]([0-9]+)")
    set(_version "${CMAKE_MATCH_1}")
    if(_nvcc MATCHES "release ${_version}[.]")
      set(MUSTER_CUDA_KERNELS ON)
    endif()
  endif()
  if(MUSTER_CUDA_KERNELS)
    # It may not work with this C++ compiler.
    set(_trial "${CMAKE_BINARY_DIR}/nvcc_trial")
    file(WRITE "${_trial}.cu" "#include <cstdint>\n__global__ void trial(uint8_t* at) { *at = 1; }\n")
    _muster_nvcc_host(_host)
    execute_process(COMMAND "${MUSTER_NVCC}" ${_host} -std=c++20 -c "${_trial}.cu" -o "${_trial}.o"
      RESULT_VARIABLE _failed OUTPUT_VARIABLE _said ERROR_VARIABLE _said)
    if(_failed)
      set(MUSTER_CUDA_KERNELS OFF)
      message(WARNING "No kernels of our own for GPUs: ${MUSTER_NVCC} does not work with ${CMAKE_CXX_COMPILER}. Batch norm and pooling will be libtorch's.\n${_said}")
    endif()
  else()
    message(WARNING "No kernels of our own for GPUs: nvcc (${MUSTER_NVCC}) is of another version than libtorch's CUDA (${MUSTER_CUDA_RUNTIME}). Batch norm and pooling will be libtorch's.")
  endif()
  unset(_needs)
  unset(_nvcc)
endif()

function(muster_cuda)
  if(NOT MUSTER_CUDA_KERNELS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" HEADERS)
  _muster_nvcc_host(host)
  list(TRANSFORM arg_HEADERS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    get_filename_component(name "${source}" NAME_WE)
    set(source "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o")
    # Machine code for A100 and H100, and what the driver of a newer one compiles when it loads it.
    add_custom_command(OUTPUT "${object}"
      COMMAND "${MUSTER_NVCC}" ${host} -std=c++20 -O3 -Xcompiler=-fPIC "-I${PROJECT_SOURCE_DIR}" --threads 2
        -gencode=arch=compute_80,code=sm_80 "-gencode=arch=compute_90,code=[sm_90,compute_90]" -c "${source}" -o "${object}"
      DEPENDS "${source}" ${arg_HEADERS}
      COMMENT "Compiling ${name}.cu"
      VERBATIM)
    set_source_files_properties("${object}" TARGET_DIRECTORY muster PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    target_sources(muster PRIVATE "${object}")
    add_custom_target(muster_${name}_cuda DEPENDS "${object}")
    add_dependencies(muster muster_${name}_cuda)
  endforeach()
  target_link_libraries(muster PRIVATE "$<BUILD_INTERFACE:${MUSTER_CUDA_RUNTIME}>")
  get_filename_component(folder "${MUSTER_CUDA_RUNTIME}" DIRECTORY)
  set_property(TARGET muster APPEND PROPERTY INSTALL_RPATH "${folder}")
endfunction()
