# An overlay port, which packs the tree that it lies in:
#     vcpkg install delayq --overlay-ports=delayq/.package/vcpkg
set(VCPKG_BUILD_TYPE release) # there is only a header
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}/.package")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/delayq)
vcpkg_fixup_pkgconfig()
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage"
  DESTINATION "${CURRENT_PACKAGES_DIR}/share/delayq")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
