# Optional features: each is auto | on | off. `auto` takes what is there; `on` fails when it is not;
# the summary prints every feature with on/off and why.
option(SLUICE_BUILD_TESTS "Build the tests" ON)
# Tests are compiled once and run once: full optimization takes longer than it gains.
set(SLUICE_TEST_OPTIMIZATION "-O1" CACHE STRING "Optimization of the tests")
option(SLUICE_UNITY "Compile the sources of a folder together: half the time from nothing, more after a change" OFF)
option(SLUICE_BUILD_BENCH "Build the benchmarks" ON)
option(SLUICE_BUILD_EXAMPLES "Build the examples" ON)
option(SLUICE_BUILD_PYTHON "Build the Python package; pyproject.toml sets it" OFF)
option(SLUICE_ASSERTIONS "Keep assert() in optimised builds" OFF)
option(SLUICE_WERROR "Warnings are errors" OFF)
option(SLUICE_LIBFUZZER "Build the fuzz targets as programs of libFuzzer (needs clang)" OFF)
set(SLUICE_SANITIZE "" CACHE STRING "Comma-separated sanitizers for every target, e.g. address,undefined")

set(_sluice_summary "" CACHE INTERNAL "")

function(_sluice_feature_result feature enabled reason)
  set(SLUICE_HAVE_${feature} ${enabled} PARENT_SCOPE)
  string(TOLOWER "${feature}" shown)
  if(enabled)
    set(state "on ")
  else()
    set(state "off")
  endif()
  string(REPLACE ";" "," reason "${reason}")  # else a reason would be several lines of the summary
  set(_sluice_summary "${_sluice_summary};${shown}|${state}|${reason}" CACHE INTERNAL "")
endfunction()

# sluice_feature(NAME <found-variable> <why it is on> <why it cannot be>)
macro(sluice_feature name found why_found why_missing)
  set(SLUICE_WITH_${name} "auto" CACHE STRING "auto | on | off")
  set_property(CACHE SLUICE_WITH_${name} PROPERTY STRINGS auto on off)
  string(TOLOWER "${SLUICE_WITH_${name}}" _wanted)
  if(_wanted MATCHES "^(off|no|false|0)$")
    _sluice_feature_result(${name} FALSE "switched off by SLUICE_WITH_${name}")
  elseif(${found})
    _sluice_feature_result(${name} TRUE "${why_found}")
  elseif(_wanted MATCHES "^(on|yes|true|1)$")
    message(FATAL_ERROR "SLUICE_WITH_${name}=on, but ${why_missing}")
  elseif(_wanted STREQUAL "auto")
    _sluice_feature_result(${name} FALSE "${why_missing}")
  else()
    message(FATAL_ERROR "SLUICE_WITH_${name}=${SLUICE_WITH_${name}}: expected auto, on or off")
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)

include(SluiceThirdParty)

foreach(library xxhash hwy jsoncpp)
  sluice_find_third_party(${library})
  if(NOT ${library}_FOUND)
    message(FATAL_ERROR "${library} was not found: run scripts/setup.sh, or install its -dev package")
  endif()
endforeach()

sluice_find_third_party(liburing)
sluice_feature(URING liburing_FOUND "liburing, ${liburing_LIBRARY}"
  "liburing was not found (package liburing-dev); libaio or threads do the I/O")

sluice_find_third_party(libaio)
sluice_feature(AIO libaio_FOUND "libaio, ${libaio_LIBRARY}"
  "libaio was not found (package libaio-dev); threads do the I/O where io_uring cannot")

sluice_find_third_party(TBB)
sluice_feature(TBB TBB_FOUND "oneTBB ${TBB_VERSION}"
  "oneTBB was not found (package libtbb-dev); plain threads are used")

sluice_find_third_party(hwloc)
sluice_feature(HWLOC hwloc_FOUND "hwloc, ${hwloc_LIBRARY}"
  "hwloc was not found (package libhwloc-dev); doctor shows less, NUMA nodes are not told apart")

find_package(LibTorch QUIET)
sluice_feature(TORCH LibTorch_FOUND "LibTorch ${LibTorch_VERSION}, ${LibTorch_ROOT_DIR}" "${LibTorch_WHY_MISSING}")

find_package(CudaRuntime QUIET)
sluice_feature(CUDA CudaRuntime_FOUND "headers of CUDA ${CudaRuntime_MAJOR}, ${CudaRuntime_INCLUDE}"
  "${CudaRuntime_WHY_MISSING}; no GPU is used")

# The compiler of kernels that LibTorch has none of; its own are used where there is none.
set(_nvcc_found FALSE)
set(_nvcc_missing "there is no CUDA to compile for")
if(SLUICE_HAVE_CUDA AND SLUICE_HAVE_TORCH)
  include(CheckLanguage)
  check_language(CUDA)
  set(_nvcc_missing "no nvcc that works was found; norms on a GPU are LibTorch's, and \"ratio\" and \"gpu_updates\" have no effect")
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE _version ERROR_QUIET)
    if(_version MATCHES "release ${CudaRuntime_MAJOR}\\.")
      set(_nvcc_found TRUE)
    else()
      set(_nvcc_missing "${CMAKE_CUDA_COMPILER} is not of CUDA ${CudaRuntime_MAJOR}; norms on a GPU are LibTorch's, and \"ratio\" and \"gpu_updates\" have no effect")
    endif()
  endif()
endif()
sluice_feature(NVCC _nvcc_found "${CMAKE_CUDA_COMPILER}" "${_nvcc_missing}")

# Headers only; the library is loaded when ranks with GPUs join.
set(_nccl_hints "")
if(LibTorch_FOUND)
  get_filename_component(_packages "${LibTorch_ROOT_DIR}" DIRECTORY)
  list(APPEND _nccl_hints "${_packages}/nvidia/nccl")
endif()
find_path(Nccl_INCLUDE nccl.h HINTS ${_nccl_hints} PATH_SUFFIXES include)
find_file(Nccl_LIBRARY libnccl.so.2 HINTS ${_nccl_hints} PATH_SUFFIXES lib lib64)
mark_as_advanced(Nccl_INCLUDE Nccl_LIBRARY)
set(_nccl_found FALSE)
set(_nccl_missing "nccl.h was not found beside LibTorch; ranks with GPUs cannot be started")
if(NOT SLUICE_HAVE_CUDA)
  set(_nccl_missing "there is no CUDA; ranks with GPUs cannot be started")
elseif(Nccl_INCLUDE)
  set(_nccl_found TRUE)
endif()
sluice_feature(NCCL _nccl_found "headers of NCCL, ${Nccl_INCLUDE}" "${_nccl_missing}")

# Ranks that are processes on CPUs. Its own small library links MPI; all else runs without it.
set(MPI_CXX_SKIP_MPICXX TRUE)  # the C interface
find_package(MPI QUIET COMPONENTS CXX)
sluice_feature(MPI MPI_CXX_FOUND "MPI ${MPI_CXX_VERSION}, ${MPI_CXX_COMPILER}"
  "MPI was not found (packages libopenmpi-dev, openmpi-bin); ranks on CPUs cannot be started")

find_program(SLUICE_CCACHE ccache)
mark_as_advanced(SLUICE_CCACHE)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SLUICE_CCACHE}")
endif()

function(sluice_print_summary)
  message(STATUS "")
  message(STATUS "Sluice ${PROJECT_VERSION} (${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION})")
  foreach(line IN LISTS _sluice_summary)
    if(line)
      string(REPLACE "|" ";" parts "${line}")
      list(GET parts 0 shown)
      list(GET parts 1 state)
      list(GET parts 2 reason)
      string(LENGTH "${shown}" length)
      math(EXPR pad "8 - ${length}")
      string(REPEAT " " ${pad} spaces)
      message(STATUS "  ${shown}${spaces} ${state}  ${reason}")
    endif()
  endforeach()
  if(SLUICE_SANITIZE)
    message(STATUS "  sanitizers: ${SLUICE_SANITIZE}")
  endif()
  message(STATUS "")
endfunction()
