# Compiles through ccache when it is installed. Its cache is inside the checkout unless CCACHE_DIR says otherwise.
find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(cache "$ENV{CCACHE_DIR}")
  if(NOT cache)
    set(cache "${PROJECT_SOURCE_DIR}/build/ccache")
  endif()
  # A file that uses a precompiled header is cached only when ccache may ignore the header's time stamp.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env "CCACHE_DIR=${cache}" CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
endif()
