# sluice_add_component(name [SHARED] [NO_INSTALL] SOURCES ... HEADERS ... PUBLIC ... PRIVATE ...)
#   makes sluice_<name> (alias sluice::<name>) with a header file set, install and export. A component
#   sees only the headers of what it links, so an include against the layers does not compile.
#   HEADERS are relative to include/; each is also compiled alone.
# sluice_compile_together(target [APART source...])  with SLUICE_UNITY, the compiler takes up to six sources of
#   a folder at once and reads their headers once. APART: sources whose private names another source of
#   their folder has too, or whose public class holds private types; each is compiled alone.
# sluice_add_program(name SOURCES ... LINK ...)  a program in build/bin
# sluice_add_test(name SOURCES ... LINK ... [LABELS ...] [TIMEOUT s] [NO_PCH | TORCH_PCH] [APART ...])  a GoogleTest program;
#   NO_PCH: without the precompiled GoogleTest (it brings a precompiled header of its own); TORCH_PCH: with the
#   precompiled GoogleTest and LibTorch. Labelled with its folder below
#   tests/, and built by the target <folder>_tests: `ctest -L '^nvme$'` after `ninja nvme_tests`.

# What is installed finds the libraries that it was linked to: LibTorch is in no folder of the system.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

function(sluice_target_options target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wconversion -ffp-contract=off
    # GCC 12 warns of overlapping copies inside std::string operator+ (GCC bug 105651).
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety>
    $<$<BOOL:${SLUICE_WERROR}>:-Werror>)
  if(SLUICE_ASSERTIONS)
    target_compile_options(${target} PRIVATE -UNDEBUG)
  endif()
  if(SLUICE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE})
    if(SLUICE_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=undefined)
    endif()
  endif()
endfunction()

# Sources with and without the precompiled header of the target are in groups of their own.
function(sluice_compile_together target)
  if(NOT SLUICE_UNITY)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "APART" ${ARGN})
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(count LESS 2)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS sources)
    if(source IN_LIST arg_APART OR NOT source MATCHES "[.]cpp$")
      continue()
    endif()
    get_filename_component(group "${source}" DIRECTORY)
    get_source_file_property(plain "${source}" SKIP_PRECOMPILE_HEADERS)
    if(plain)
      string(APPEND group "_plain")
    endif()
    string(MAKE_C_IDENTIFIER "${group}" group)
    math(EXPR count_${group} "${count_${group}} + 1")
    math(EXPR part "(${count_${group}} - 1) / 6")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}_${part}")
    if(plain)
      set_source_files_properties(
        "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/Unity/unity_${group}_${part}_cxx.cxx"
        PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

function(sluice_add_component name)
  cmake_parse_arguments(arg "SHARED;NO_INSTALL" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  set(target sluice_${name})
  if(arg_SHARED)
    add_library(${target} SHARED ${arg_SOURCES})
  else()
    add_library(${target} STATIC ${arg_SOURCES})
  endif()
  add_library(sluice::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  sluice_target_options(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  list(TRANSFORM arg_HEADERS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/include/" OUTPUT_VARIABLE headers)
  target_sources(${target} PUBLIC FILE_SET HEADERS
    BASE_DIRS "${CMAKE_CURRENT_SOURCE_DIR}/include" FILES ${headers})
  target_include_directories(${target} PRIVATE src)
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC})
  # Third-party libraries behind src/ never reach a consumer's include path.
  foreach(library IN LISTS arg_PRIVATE)
    target_link_libraries(${target} PRIVATE ${library})
  endforeach()

  # Every public header compiles alone.
  set(checks "")
  foreach(header IN LISTS arg_HEADERS)
    string(MAKE_C_IDENTIFIER "${header}" id)
    set(check "${CMAKE_CURRENT_BINARY_DIR}/header_check/${id}.cpp")
    file(CONFIGURE OUTPUT "${check}" CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
    list(APPEND checks "${check}")
  endforeach()
  # A sanitizer finds nothing in them.
  if(checks AND SLUICE_BUILD_TESTS AND PROJECT_IS_TOP_LEVEL AND NOT SLUICE_SANITIZE)
    add_library(${target}_header_check OBJECT ${checks})
    sluice_target_options(${target}_header_check)
    target_link_libraries(${target}_header_check PRIVATE ${target})
  endif()

  if(NOT arg_NO_INSTALL)
    install(TARGETS ${target} EXPORT sluice-${name}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name}
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name}
      FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${name})
    install(EXPORT sluice-${name} NAMESPACE sluice:: FILE sluice-${name}.cmake
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice COMPONENT ${name})
  endif()
endfunction()

# Records that an installed component needs a third-party library (a name of sluice_find_third_party).
function(sluice_uses_third_party component library)
  set_property(GLOBAL APPEND PROPERTY SLUICE_THIRD_PARTY_${component} ${library})
endfunction()

function(sluice_add_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  sluice_target_options(${name})
  target_link_libraries(${name} PRIVATE ${arg_LINK})
endfunction()

function(sluice_add_test name)
  cmake_parse_arguments(arg "NO_PCH;TORCH_PCH" "TIMEOUT" "SOURCES;LINK;LABELS;APART" ${ARGN})
  sluice_add_program(${name} SOURCES ${arg_SOURCES}
    LINK ${arg_LINK} sluice_test_support GTest::gtest GTest::gmock GTest::gtest_main)
  sluice_compile_together(${name} APART ${arg_APART})
  # Clang's -Wconversion includes signs, which GCC's leaves out: libraries satisfy both, tests GCC's.
  target_compile_options(${name} PRIVATE ${SLUICE_TEST_OPTIMIZATION}
    $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)
  if(arg_TORCH_PCH)
    target_precompile_headers(${name} REUSE_FROM sluice_torch_test_pch)
  elseif(NOT arg_NO_PCH)
    target_precompile_headers(${name} REUSE_FROM sluice_test_pch)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # Long ones first: ctest then has work for each core until the end, in a build folder without an earlier run too.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT})
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX REPLACE "/.*" "" folder "${folder}")
  set_tests_properties(${name} PROPERTIES LABELS "${folder};${arg_LABELS}")
  if(NOT TARGET ${folder}_tests)
    add_custom_target(${folder}_tests)
  endif()
  add_dependencies(${folder}_tests ${name})
  # Threads of OpenMP that wait leave the cores to our own threads and to the test beside this one, as in the program.
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "OMP_WAIT_POLICY=passive")
  # On a machine with a GPU, only the tests that are about one see it.
  if(NOT arg_LABELS MATCHES "gpu")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "CUDA_VISIBLE_DEVICES=")
  endif()
endfunction()

# Notes that this build has no `what`, and why: scripts/test.sh prints it beside the tests that were skipped.
function(sluice_tests_left_out what why)
  set_property(GLOBAL APPEND_STRING PROPERTY SLUICE_TESTS_LEFT_OUT "${what}: ${why}\n")
endfunction()

function(sluice_write_tests_left_out)
  get_property(lines GLOBAL PROPERTY SLUICE_TESTS_LEFT_OUT)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/tests_left_out.txt" CONTENT "${lines}")
endfunction()

function(sluice_install_package)
  include(CMakePackageConfigHelpers)
  foreach(component base nvme cpu_adam offload zero train)
    get_property(SLUICE_THIRD_PARTY_${component} GLOBAL PROPERTY SLUICE_THIRD_PARTY_${component})
  endforeach()
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/sluiceConfig.cmake.in"
    "${CMAKE_CURRENT_BINARY_DIR}/sluiceConfig.cmake"
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
  write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/sluiceConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/sluiceConfig.cmake"
    "${CMAKE_CURRENT_BINARY_DIR}/sluiceConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/SluiceThirdParty.cmake"
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice COMPONENT base)
endfunction()
