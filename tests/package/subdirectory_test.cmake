# Run by ctest: a project that takes Sluice by add_subdirectory is configured, and every file of the source tree that it would install is
# there. Nothing is built.
file(REMOVE_RECURSE "${WORK_DIR}")
file(WRITE "${WORK_DIR}/source/CMakeLists.txt"
  "cmake_minimum_required(VERSION 3.25)\nproject(own CXX)\nset(SLUICE_WITH_TORCH off)\nadd_subdirectory(\"${SOURCE_DIR}\" sluice)\n")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${WORK_DIR}/source" -B "${WORK_DIR}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "configuring failed (${result}):\n${output}")
endif()

file(GLOB_RECURSE scripts "${WORK_DIR}/build/*cmake_install.cmake")
set(count 0)
foreach(script IN LISTS scripts)
  file(READ "${script}" text)
  string(REGEX MATCHALL "\"(${SOURCE_DIR}|${WORK_DIR}/source)/[^\"$]+\"" files "${text}")
  foreach(quoted IN LISTS files)
    string(REPLACE "\"" "" path "${quoted}")
    if(path MATCHES "^${WORK_DIR}/build/")  # made by the build, which may be inside the source tree
      continue()
    endif()
    math(EXPR count "${count} + 1")
    if(NOT EXISTS "${path}")
      message(FATAL_ERROR "${script} installs ${path}, which is not there")
    endif()
  endforeach()
endforeach()
if(count LESS 10)
  message(FATAL_ERROR "only ${count} files to install were found in ${WORK_DIR}/build")
endif()
