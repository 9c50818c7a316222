"""delayq for Conan 2: `conan create .package/conan` packs the tree that this
file lies in."""
import os

from conan import ConanFile
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class Delayq(ConanFile):
    name = "delayq"
    description = "distributed delay queue for C programs, on Redis or Valkey"
    license = "MIT"
    topics = ("delay-queue", "job-queue", "redis", "valkey", "redisson")
    package_type = "header-library"
    no_copy_source = True

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "../../delayq.h"))
        self.version = header.split('#define DELAYQ_VERSION "')[1].split('"')[0]

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "../..")
        for name in ("delayq.h", "LICENSE"):
            copy(self, name, root, self.export_sources_folder)

    def requirements(self):
        self.requires("hiredis/[>=0.14 <2]", transitive_headers=True,
                      transitive_libs=True)

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "delayq.h", self.source_folder,
             os.path.join(self.package_folder, "include"))
        copy(self, "LICENSE", self.source_folder,
             os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_file_name", "delayq")
        self.cpp_info.set_property("cmake_config_version_compat",
                                   "SameMinorVersion")
        self.cpp_info.set_property("cmake_target_name", "delayq::delayq")
        self.cpp_info.set_property("pkg_config_name", "delayq")
