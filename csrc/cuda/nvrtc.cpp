// SPDX-License-Identifier: Apache-2.0
#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace pig::cuda {
namespace {

constexpr int kSuccess = 0;
/// By the major versions of CUDA; of 11 all from 11.2 on have one name.
constexpr std::array<const char*, 3> kNames = {"libnvrtc.so.13", "libnvrtc.so.12",
                                               "libnvrtc.so.11.2"};

using Program = struct ProgramHandle*;

// Name, parameters. All return a result but GetErrorString.
#define PIG_NVRTC_FUNCTIONS(F)                                                          \
  F(Version, (int* major, int* minor))                                                  \
  F(GetNumSupportedArchs, (int* count))                                                 \
  F(GetSupportedArchs, (int* architectures))                                            \
  F(CreateProgram, (Program * program, const char* text, const char* name, int headers, \
                    const char* const* header_texts, const char* const* header_names))  \
  F(CompileProgram, (Program program, int options, const char* const* option_texts))    \
  F(DestroyProgram, (Program * program))                                                \
  F(GetProgramLogSize, (Program program, size_t* bytes))                                \
  F(GetProgramLog, (Program program, char* log))                                        \
  F(GetCUBINSize, (Program program, size_t* bytes))                                     \
  F(GetCUBIN, (Program program, char* code))                                            \
  F(GetPTXSize, (Program program, size_t* bytes))                                       \
  F(GetPTX, (Program program, char* code))

/// The library as a table of functions.
struct Nvrtc {
#define PIG_DECLARE(name, parameters) int(*name) parameters = nullptr;
  PIG_NVRTC_FUNCTIONS(PIG_DECLARE)
#undef PIG_DECLARE
  const char* (*GetErrorString)(int result) = nullptr;
  std::string error;  ///< why there is none

  Nvrtc();

  std::string describe(const char* call, int result) const {
    return std::string(call) + ": " + GetErrorString(result);
  }

 private:
  void find_functions(void* library);
  void load_builtins() const;
};

std::vector<std::string>& paths() {
  static auto* const kept = new std::vector<std::string>;  // leaked: used until the process ends
  return *kept;
}

/// Never closed: what was compiled may still be in use.
void* open_library(std::string& error) {
  const char* named = std::getenv("PYINSTRUMENT_GPU_LIBNVRTC");
  if (named != nullptr && *named != '\0') {
    void* const library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) error = dlerror();
    return library;
  }
  for (const char* name : kNames)
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  for (const std::string& path : paths())
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  for (const char* name : kNames)
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  error = "NVRTC was not found";
  for (const char* name : kNames) error += std::string(name == kNames[0] ? " (" : ", ") + name;
  error += ')';
  return nullptr;
}

Nvrtc::Nvrtc() {
  void* const library = open_library(error);
  if (library == nullptr) return;
  find_functions(library);
  if (error.empty()) load_builtins();
}

void Nvrtc::find_functions(void* library) {
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && error.empty()) error = std::string("NVRTC has no ") + name;
  };
#define PIG_FIND(name, parameters) find("nvrtc" #name, name);
  PIG_NVRTC_FUNCTIONS(PIG_FIND)
#undef PIG_FIND
  find("nvrtcGetErrorString", GetErrorString);
}

/// NVRTC loads a second library by its name alone, which is not found where the two lie in a
/// Python package. Once loaded, it is.
void Nvrtc::load_builtins() const {
  int major = 0, minor = 0;
  Dl_info info;
  if (Version(&major, &minor) != kSuccess || dladdr(reinterpret_cast<void*>(Version), &info) == 0 ||
      info.dli_fname == nullptr)
    return;
  const std::string path = info.dli_fname;
  const std::string name =
      "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  dlopen((path.substr(0, path.rfind('/') + 1) + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
}

const Nvrtc& nvrtc() {
  static const Nvrtc* const instance = new Nvrtc;  // leaked: used until the process ends
  return *instance;
}

/// The compute capability to compile for, as 90, and whether it is the device's own.
std::pair<int, bool> architecture_for(const Nvrtc& library, int wanted) {
  int count = 0;
  if (library.GetNumSupportedArchs(&count) != kSuccess || count <= 0) return {wanted, true};
  std::vector<int> known(static_cast<size_t>(count));
  if (library.GetSupportedArchs(known.data()) != kSuccess) return {wanted, true};
  int best = 0;
  for (const int architecture : known)
    if (architecture <= wanted) best = std::max(best, architecture);
  return best == 0 ? std::pair(wanted, true) : std::pair(best, best == wanted);
}

/// The text or code that a pair of functions gives; empty where they fail.
std::string bytes_of(Program program, int (*size_of)(Program, size_t*),
                     int (*copy)(Program, char*)) {
  size_t bytes = 0;
  if (size_of(program, &bytes) != kSuccess) return {};
  std::string text(bytes, '\0');
  if (copy(program, text.data()) != kSuccess) return {};
  return text;
}

}  // namespace

void set_nvrtc_paths(std::vector<std::string> new_paths) { paths() = std::move(new_paths); }

CompiledCode compile_by_nvrtc(const SourceText& source, const std::vector<SourceText>& headers,
                              int major, int minor) {
  const Nvrtc& library = nvrtc();
  if (!library.error.empty()) return {{}, library.error};
  std::vector<const char*> texts, names;
  for (const SourceText& header : headers) {
    texts.push_back(header.text);
    names.push_back(header.name);
  }
  Program program = nullptr;
  const int created =
      library.CreateProgram(&program, source.text, source.name, static_cast<int>(headers.size()),
                            texts.data(), names.data());
  if (created != kSuccess) return {{}, library.describe("nvrtcCreateProgram", created)};

  const auto [architecture, is_own] = architecture_for(library, major * 10 + minor);
  const std::string option = std::string("--gpu-architecture=") + (is_own ? "sm_" : "compute_") +
                             std::to_string(architecture);
  const std::array options = {option.c_str(), "--std=c++17"};
  CompiledCode result;
  const int compiled =
      library.CompileProgram(program, static_cast<int>(options.size()), options.data());
  if (compiled != kSuccess) {
    const std::string log = bytes_of(program, library.GetProgramLogSize, library.GetProgramLog);
    result.error = library.describe("nvrtcCompileProgram", compiled) + " (" + option + ") " +
                   log.substr(0, log.find('\n'));
  } else {
    result.code = is_own ? bytes_of(program, library.GetCUBINSize, library.GetCUBIN)
                         : bytes_of(program, library.GetPTXSize, library.GetPTX);
    if (result.code.empty()) result.error = "NVRTC gave no code for " + option;
  }
  library.DestroyProgram(&program);
  return result;
}

}  // namespace pig::cuda
