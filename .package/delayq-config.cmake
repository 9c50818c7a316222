# find_package(delayq) gives the target delayq::delayq: the header, and the
# hiredis that it needs. Where the project has a target hiredis::hiredis
# already, that one is taken; else hiredis' own package, where it has one; else
# the library, for which CMAKE_PREFIX_PATH may say where it is. CMakeLists.txt
# includes this, too, with delayq_include and delayq_scope set.
if(NOT TARGET delayq::delayq)
  set(delayq_hiredis hiredis::hiredis)
  set(delayq_hiredis_include "")
  if(NOT TARGET hiredis::hiredis)
    find_package(hiredis CONFIG QUIET)
  endif()
  if(NOT TARGET hiredis::hiredis)
    find_path(DELAYQ_HIREDIS_INCLUDE_DIR hiredis/hiredis.h)
    find_library(DELAYQ_HIREDIS_LIBRARY NAMES hiredis hiredisd)
    mark_as_advanced(DELAYQ_HIREDIS_INCLUDE_DIR DELAYQ_HIREDIS_LIBRARY)
    set(delayq_hiredis "${DELAYQ_HIREDIS_LIBRARY}")
    set(delayq_hiredis_include "${DELAYQ_HIREDIS_INCLUDE_DIR}")
    if(NOT DELAYQ_HIREDIS_INCLUDE_DIR OR NOT DELAYQ_HIREDIS_LIBRARY)
      set(delayq_FOUND FALSE)
      set(delayq_NOT_FOUND_MESSAGE "delayq needs hiredis (libhiredis-dev)")
      return()
    endif()
  endif()
  if(NOT delayq_include) # installed: packagers put this file at other depths
    foreach(delayq_up "../.." "../../.." "../../../..")
      get_filename_component(delayq_include
        "${CMAKE_CURRENT_LIST_DIR}/${delayq_up}/include" ABSOLUTE)
      if(EXISTS "${delayq_include}/delayq.h")
        break()
      endif()
    endforeach()
  endif()
  add_library(delayq::delayq INTERFACE IMPORTED ${delayq_scope})
  set_target_properties(delayq::delayq PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${delayq_include};${delayq_hiredis_include}"
    INTERFACE_LINK_LIBRARIES
    "${delayq_hiredis};$<$<PLATFORM_ID:Windows>:ws2_32;bcrypt>")
endif()
