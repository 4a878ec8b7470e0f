# Finds the headers and the library of the CUDA 13 runtime: beside LibTorch in its wheel, else in a
# CUDA Toolkit. Sets CudaRuntime_INCLUDE; the library is loaded when a program asks for a GPU, from
# CudaRuntime_LIBRARY_DIR where the loader does not know it. No nvcc is needed.
set(CudaRuntime_MAJOR 13)

set(_hints "")
if(LibTorch_FOUND)
  get_filename_component(_packages "${LibTorch_ROOT_DIR}" DIRECTORY)
  list(APPEND _hints "${_packages}/nvidia/cu${CudaRuntime_MAJOR}")
endif()
list(APPEND _hints /usr/local/cuda)
find_path(CudaRuntime_INCLUDE cuda_runtime_api.h HINTS ${_hints} PATH_SUFFIXES include)
find_file(CudaRuntime_LIBRARY libcudart.so.${CudaRuntime_MAJOR} HINTS ${_hints} PATH_SUFFIXES lib lib64)
mark_as_advanced(CudaRuntime_INCLUDE CudaRuntime_LIBRARY)

set(CudaRuntime_FOUND FALSE)
if(NOT CudaRuntime_INCLUDE)
  set(CudaRuntime_WHY_MISSING "no cuda_runtime_api.h beside LibTorch nor in /usr/local/cuda")
else()
  file(STRINGS "${CudaRuntime_INCLUDE}/cuda_runtime_api.h" _line REGEX "#define CUDART_VERSION ")
  string(REGEX MATCH "[0-9]+" CudaRuntime_VERSION "${_line}")
  math(EXPR _major "${CudaRuntime_VERSION} / 1000")
  if(NOT _major EQUAL CudaRuntime_MAJOR)
    set(CudaRuntime_WHY_MISSING
        "${CudaRuntime_INCLUDE} is of CUDA ${_major}, needed is ${CudaRuntime_MAJOR}")
  else()
    set(CudaRuntime_FOUND TRUE)
    if(CudaRuntime_LIBRARY)
      get_filename_component(CudaRuntime_LIBRARY_DIR "${CudaRuntime_LIBRARY}" DIRECTORY)
    endif()
  endif()
endif()
