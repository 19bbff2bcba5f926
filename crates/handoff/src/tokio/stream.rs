//! What connections of every family have with tokio's names: one text for [`TcpStream`](super::TcpStream) and
//! [`UnixStream`](super::UnixStream), which are made and named differently.

/// The methods and traits of a stream with the fields `read` and `write`.
macro_rules! stream {
    ($name:ident) => {
        impl $name {
            pub(super) fn of_stream(socket: $crate::socket::Socket) -> Self {
                let (read, write) = $crate::tokio::halves::halves(socket);
                Self { read, write }
            }

            /// Both halves, for one task: they are lent, and dropping them ends nothing.
            pub fn split(&mut self) -> (&mut OwnedReadHalf, &mut OwnedWriteHalf) {
                (&mut self.read, &mut self.write)
            }

            /// As a read, but the bytes stay for the next one. 0 is the end.
            ///
            /// # Errors
            ///
            /// As of a read.
            pub async fn peek(&mut self, into: &mut [u8]) -> ::std::io::Result<usize> {
                self.read.peek(into).await
            }

            /// As [`OwnedReadHalf::readable`].
            ///
            /// # Errors
            ///
            /// As there.
            pub async fn readable(&self) -> ::std::io::Result<()> {
                self.read.readable().await
            }

            /// As [`OwnedWriteHalf::writable`].
            ///
            /// # Errors
            ///
            /// As there.
            pub async fn writable(&self) -> ::std::io::Result<()> {
                self.write.writable().await
            }

            /// Waits until the stream is readable or writable, as asked for, and tells which.
            ///
            /// # Errors
            ///
            /// As [`readable`](Self::readable).
            pub async fn ready(
                &self,
                interest: ::tokio::io::Interest,
            ) -> ::std::io::Result<::tokio::io::Ready> {
                self.write.ready(interest).await
            }

            /// As [`OwnedReadHalf::poll_read_ready`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn poll_read_ready(
                &self,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                self.read.poll_read_ready(context)
            }

            /// As [`OwnedWriteHalf::poll_write_ready`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn poll_write_ready(
                &self,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                self.write.poll_write_ready(context)
            }

            /// As [`OwnedReadHalf::try_read`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn try_read(&self, into: &mut [u8]) -> ::std::io::Result<usize> {
                self.read.try_read(into)
            }

            /// As [`OwnedReadHalf::try_read_vectored`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn try_read_vectored(
                &self,
                into: &mut [::std::io::IoSliceMut<'_>],
            ) -> ::std::io::Result<usize> {
                self.read.try_read_vectored(into)
            }

            /// As [`OwnedReadHalf::try_read_buf`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn try_read_buf<B: ::bytes::BufMut + ?Sized>(
                &self,
                into: &mut B,
            ) -> ::std::io::Result<usize> {
                self.read.try_read_buf(into)
            }

            /// As [`OwnedWriteHalf::try_write`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn try_write(&self, bytes: &[u8]) -> ::std::io::Result<usize> {
                self.write.try_write(bytes)
            }

            /// As [`OwnedWriteHalf::try_write_vectored`].
            ///
            /// # Errors
            ///
            /// As there.
            pub fn try_write_vectored(
                &self,
                slices: &[::std::io::IoSlice<'_>],
            ) -> ::std::io::Result<usize> {
                self.write.try_write_vectored(slices)
            }

            /// Makes a call of yours on the descriptor, which must not wait: it may say `WouldBlock`.
            ///
            /// # Errors
            ///
            /// `WouldBlock` where bytes or sends of before come first; on a TLS connection, whose cipher the call would
            /// pass; what the call says.
            pub fn try_io<T>(
                &self,
                interest: ::tokio::io::Interest,
                call: impl FnOnce() -> ::std::io::Result<T>,
            ) -> ::std::io::Result<T> {
                $crate::tokio::ready::try_io(self.socket(), interest, &self.write.full, call)
            }

            /// The socket, for lending.
            pub fn socket(&self) -> &$crate::socket::Socket {
                self.read.socket()
            }

            /// The socket alone. Nothing that came is lost.
            pub fn into_socket(self) -> $crate::socket::Socket {
                self.read.socket
            }
        }

        impl ::std::os::fd::AsFd for $name {
            fn as_fd(&self) -> ::std::os::fd::BorrowedFd<'_> {
                self.socket().as_fd()
            }
        }

        impl ::tokio::io::AsyncRead for $name {
            fn poll_read(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
                into: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.read).poll_read(context, into)
            }
        }

        impl ::tokio::io::AsyncWrite for $name {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.write).poll_write(context, bytes)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
                slices: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.write).poll_write_vectored(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.write.is_write_vectored()
            }

            fn poll_flush(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.write).poll_flush(context)
            }

            fn poll_shutdown(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.write).poll_shutdown(context)
            }
        }
    };
}

pub(super) use stream;
