# Defines muster::libtorch, the libtorch that Muster is built against, without libtorch's own CMake package: that one needs
# the CUDA toolkit as soon as the library was built with CUDA, even when only its CPU half is used.
#
# Looks at, in this order: Torch_DIR, CMAKE_PREFIX_PATH (an entry may be the root of libtorch or its share/cmake), what an
# installed Muster was built with (muster_BUILT_WITH_LIBTORCH), build/venv of the checkout, the active python3.
# Sets MUSTER_LIBTORCH_ROOT, MUSTER_LIBTORCH_VERSION, and MUSTER_CUDA (ON when libtorch has CUDA and can load here).
# REQUIRES: Protobuf and gRPC are found before.

include_guard(GLOBAL)

# A directory is libtorch's when it has headers and the CPU library.
function(_muster_libtorch_root out candidate)
  foreach(up "" "/.." "/../.." "/../../..")
    get_filename_component(root "${candidate}${up}" ABSOLUTE)
    if(EXISTS "${root}/include/c10/core/Device.h" AND EXISTS "${root}/lib/libtorch_cpu.so")
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

function(_muster_find_libtorch out)
  set(candidates)
  foreach(given "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(given)
      _muster_libtorch_root(root "${given}")
      if(NOT root)
        message(FATAL_ERROR "Torch_DIR is \"${given}\", which is not inside a libtorch (no lib/libtorch_cpu.so above it).")
      endif()
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()

  string(REPLACE ":" ";" environment "$ENV{CMAKE_PREFIX_PATH}")
  list(APPEND candidates ${CMAKE_PREFIX_PATH} ${environment} ${muster_BUILT_WITH_LIBTORCH})
  file(GLOB venv LIST_DIRECTORIES true "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../build/venv/lib/python3*/site-packages/torch")
  list(APPEND candidates ${venv})
  foreach(candidate IN LISTS candidates)
    _muster_libtorch_root(root "${candidate}")
    if(root)
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()

  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE candidate ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(candidate)
    _muster_libtorch_root(root "${candidate}")
  endif()
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

function(_muster_libtorch_version out root)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX REPLACE "[^;0-9]" "" numbers "${lines}")
      string(REPLACE ";" "." version "${numbers}")
      if(version)
        set(${out} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${out} "0" PARENT_SCOPE)
endfunction()

# libtorch_cuda.so is of use only when all that it needs is here; a CUDA wheel without NVIDIA's libraries is a CPU libtorch.
function(_muster_libtorch_cuda_loads out root)
  set(${out} OFF PARENT_SCOPE)
  if(EXISTS "${root}/lib/libtorch_cuda.so")
    execute_process(COMMAND ldd "${root}/lib/libtorch_cuda.so" OUTPUT_VARIABLE needs ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND NOT needs MATCHES "not found")
      set(${out} ON PARENT_SCOPE)
    endif()
  endif()
endfunction()

_muster_find_libtorch(MUSTER_LIBTORCH_ROOT)
if(NOT MUSTER_LIBTORCH_ROOT)
  message(FATAL_ERROR "No libtorch found. Run scripts/setup, or name one with -DTorch_DIR=<libtorch>/share/cmake/Torch.")
endif()
_muster_libtorch_version(MUSTER_LIBTORCH_VERSION "${MUSTER_LIBTORCH_ROOT}")
if(MUSTER_LIBTORCH_VERSION VERSION_LESS 2.9)
  message(FATAL_ERROR "libtorch in ${MUSTER_LIBTORCH_ROOT} is version ${MUSTER_LIBTORCH_VERSION}; Muster needs 2.9 or newer.")
endif()
if(NOT DEFINED MUSTER_CUDA OR MUSTER_CUDA)
  _muster_libtorch_cuda_loads(MUSTER_CUDA "${MUSTER_LIBTORCH_ROOT}")
endif()

add_library(muster::c10 SHARED IMPORTED GLOBAL)
set_target_properties(muster::c10 PROPERTIES IMPORTED_LOCATION "${MUSTER_LIBTORCH_ROOT}/lib/libc10.so")
add_library(muster::torch_cpu SHARED IMPORTED GLOBAL)
set_target_properties(muster::torch_cpu PROPERTIES IMPORTED_LOCATION "${MUSTER_LIBTORCH_ROOT}/lib/libtorch_cpu.so")

add_library(muster::libtorch INTERFACE IMPORTED GLOBAL)
# After the system's directories, because the wheel ships the headers of an old protobuf. Since 2.9 libtorch is always built
# with the new C++ ABI of libstdc++, which is the compiler's default.
target_compile_options(muster::libtorch INTERFACE
  "SHELL:-idirafter \"${MUSTER_LIBTORCH_ROOT}/include\""
  "SHELL:-idirafter \"${MUSTER_LIBTORCH_ROOT}/include/torch/csrc/api/include\"")
target_compile_definitions(muster::libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# libtorch is built with a GCC that gives TensorBase::const_data_ptr<T>() another symbol than clang does since 18.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  target_compile_options(muster::libtorch INTERFACE -fclang-abi-compat=17)
endif()
target_link_libraries(muster::libtorch INTERFACE muster::torch_cpu muster::c10)
if(MUSTER_CUDA)
  # Nothing of ours names a symbol of these: they register their kernels when they load.
  target_compile_definitions(muster::libtorch INTERFACE MUSTER_CUDA=1)
  target_link_libraries(muster::libtorch INTERFACE
    "-Wl,--push-state,--no-as-needed" "${MUSTER_LIBTORCH_ROOT}/lib/libc10_cuda.so"
    "${MUSTER_LIBTORCH_ROOT}/lib/libtorch_cuda.so" "${MUSTER_LIBTORCH_ROOT}/lib/libtorch.so" "-Wl,--pop-state")
  # For CUDA graphs. They come with the compiler, of which a wheel of libtorch has not all.
  find_program(MUSTER_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
  cmake_path(GET MUSTER_NVCC PARENT_PATH _nvcc_folder)
  find_path(MUSTER_CUDA_HEADERS crt/host_config.h
    HINTS "${_nvcc_folder}/../include" "${_nvcc_folder}/../targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include"
      "${MUSTER_LIBTORCH_ROOT}/../nvidia/cu13/include" "${MUSTER_LIBTORCH_ROOT}/../nvidia/cuda_nvcc/include")
  # For sums over processes from GPU to GPU.
  find_path(MUSTER_NCCL_HEADERS nccl.h
    HINTS "${MUSTER_LIBTORCH_ROOT}/../nvidia/nccl/include" "$ENV{NCCL_HOME}/include" "${_nvcc_folder}/../include")
  execute_process(COMMAND "${CMAKE_NM}" -D --defined-only "${MUSTER_LIBTORCH_ROOT}/lib/libtorch_cuda.so"
    OUTPUT_VARIABLE _cuda_symbols ERROR_QUIET)
  if(MUSTER_CUDA_HEADERS AND MUSTER_NCCL_HEADERS AND _cuda_symbols MATCHES "ProcessGroupNCCL")
    target_compile_definitions(muster::libtorch INTERFACE MUSTER_NCCL=1)
    target_compile_options(muster::libtorch INTERFACE "SHELL:-idirafter \"${MUSTER_NCCL_HEADERS}\"")
  else()
    message(WARNING "No NCCL: nccl.h (${MUSTER_NCCL_HEADERS}) or CUDA's headers (${MUSTER_CUDA_HEADERS}) were not found, or libtorch has no ProcessGroupNCCL. Sums over processes will go through the host.")
  endif()
  unset(_cuda_symbols)
  if(MUSTER_CUDA_HEADERS)
    target_compile_definitions(muster::libtorch INTERFACE MUSTER_CUDA_GRAPHS=1)
    target_compile_options(muster::libtorch INTERFACE "SHELL:-idirafter \"${MUSTER_CUDA_HEADERS}\"")
  else()
    message(WARNING "No crt/host_config.h of CUDA found (install nvcc, set CUDA_HOME): steps on GPUs will not be recorded as CUDA graphs.")
  endif()
endif()
