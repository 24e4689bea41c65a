# Third-party libraries, all from Debian 12 (tools/setup installs them). Nothing is fetched at configure time.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(CLI11 REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(GTest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)  # models by name: TLS with the system's certificates, proxies
set(Boost_NO_WARN_NEW_VERSIONS ON)
find_package(Boost 1.81 REQUIRED)
# Beast asserts five bytes of a body's last chunk; "0" CR LF CR, all that there is so far of an empty body, has four, and the parser
# goes on as it should.
set_property(TARGET Boost::headers APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS BOOST_DISABLE_ASSERTS)
