// The body of a request as Beast's parser fills it: a string that grows with what has arrived.
//
// Beast's string_body reserves the announced length at once, so that a client could have 32 MB
// mapped for a header of a hundred bytes. Here the room doubles as bytes come, and never passes the
// announced length. Private to http/.
#pragma once

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <cstdint>
#include <string>

namespace http {

struct GrowingBody {
  using value_type = std::string;

  static uint64_t size(const value_type& body) { return body.size(); }

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>& length, boost::system::error_code& ec) {
      length_ = length ? static_cast<size_t>(*length) : SIZE_MAX;
      ec = {};
    }

    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& ec) {
      const size_t more = boost::asio::buffer_size(buffers);
      const size_t needed = body_.size() + more;
      if (needed > body_.capacity()) body_.reserve(room_for(needed));
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece = *at;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
      }
      ec = {};
      return more;
    }

    void finish(boost::system::error_code& ec) { ec = {}; }

   private:
    size_t room_for(size_t needed) const {
      return std::max(needed, std::min(length_, 2 * body_.capacity()));
    }

    value_type& body_;
    size_t length_ = SIZE_MAX;
  };
};

}  // namespace http
