//! Calls of datagram sockets with tokio's names, which copy once, in the kernel: one text for
//! [`UdpSocket`](super::UdpSocket) and [`UnixDatagram`](super::UnixDatagram), whose addresses differ.
//!
//! Minimum kernel: that of [`call`](super::call). Nothing is lent.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use ::tokio::io::{Interest, Ready};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, recvfrom, send, sendto};

use super::call::{Receiving, poll_call, poll_receive};
use super::ready::{self, Full, Waits, try_receiving, try_sending};
use crate::socket::Socket;

/// What came: its number of bytes, and the sender.
pub(super) type Came = (usize, Option<SocketAddrAny>);

/// A socket, and the waits of those who poll it.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) socket: Socket,
    receiving: RefCell<Waits>,
    sending: RefCell<Waits>,
    pub(super) full: Full,
}

impl Datagrams {
    pub(super) fn of(socket: Socket) -> Self {
        Self {
            socket,
            receiving: RefCell::default(),
            sending: RefCell::default(),
            full: Full::default(),
        }
    }

    fn receive_now(&self, room: &mut [MaybeUninit<u8>], flags: RecvFlags) -> io::Result<Came> {
        let ((bytes, _), _, from) = recvfrom(&self.socket, room, flags | RecvFlags::DONTWAIT)?;
        Ok((bytes.len(), from))
    }

    pub(super) async fn receive(
        &self,
        room: &mut [MaybeUninit<u8>],
        flags: RecvFlags,
    ) -> io::Result<Came> {
        let mut receiving = Receiving::default();
        poll_fn(|context| {
            poll_receive(&self.socket, &mut receiving, context, || self.receive_now(room, flags))
        })
        .await
    }

    pub(super) fn poll_receive(
        &self,
        context: &mut Context<'_>,
        room: &mut [MaybeUninit<u8>],
        flags: RecvFlags,
    ) -> Poll<io::Result<Came>> {
        let waits = &mut *self.receiving.borrow_mut();
        poll_receive(&self.socket, &mut waits.receiving, context, || self.receive_now(room, flags))
    }

    pub(super) fn try_receive(
        &self,
        room: &mut [MaybeUninit<u8>],
        flags: RecvFlags,
    ) -> io::Result<Came> {
        try_receiving(&self.socket, || self.receive_now(room, flags))
    }

    fn send_now(&self, bytes: &[u8], to: Option<&impl SocketAddrArg>) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(match to {
            Some(to) => sendto(&self.socket, bytes, flags, to)?,
            None => send(&self.socket, bytes, flags)?,
        })
    }

    pub(super) async fn send(
        &self,
        bytes: &[u8],
        to: Option<&impl SocketAddrArg>,
    ) -> io::Result<usize> {
        let mut waits = Waits::default();
        poll_fn(|context| self.poll_send_by(&mut waits, context, bytes, to)).await
    }

    pub(super) fn poll_send(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        to: Option<&impl SocketAddrArg>,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_by(&mut self.sending.borrow_mut(), context, bytes, to)
    }

    /// Sends, behind the sends that were accepted before where they have an order.
    fn poll_send_by(
        &self,
        waits: &mut Waits,
        context: &mut Context<'_>,
        bytes: &[u8],
        to: Option<&impl SocketAddrArg>,
    ) -> Poll<io::Result<usize>> {
        if self.socket.shared.keeps_order() {
            ready!(self.socket.poll_flush(&mut waits.flushing, context))?;
        }
        poll_call(&self.socket, &mut waits.writing, Socket::writable, context, || {
            self.send_now(bytes, to)
        })
    }

    pub(super) fn try_send(
        &self,
        bytes: &[u8],
        to: Option<&impl SocketAddrArg>,
    ) -> io::Result<usize> {
        try_sending(&self.socket, &self.full, to.is_some(), || self.send_now(bytes, to))
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        ready::ready(&self.socket, interest, &self.full, |_, _| true).await
    }

    pub(super) fn poll_receive_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let waits = &mut *self.receiving.borrow_mut();
        ready::poll_ready(&self.socket, waits, true, None, context).map_ok(drop)
    }

    pub(super) fn poll_send_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let waits = &mut *self.sending.borrow_mut();
        ready::poll_ready(&self.socket, waits, false, Some(&self.full), context).map_ok(drop)
    }
}

/// The methods that both have, of a type whose only field is [`Datagrams`]. `$from` makes an address of a sender, and
/// `$unaddressed` is a type of addresses to send to.
macro_rules! datagrams {
    ($name:ident, $address:ty, $from:path, $unaddressed:ty) => {
        impl $name {
            /// Receives a datagram, cut at the slice's length: its number of bytes, and its sender.
            ///
            /// # Errors
            ///
            /// While the socket has another receiver; the kernel's error about the socket, also one of an earlier
            /// send.
            pub async fn recv_from(&self, into: &mut [u8]) -> ::std::io::Result<(usize, $address)> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                named(self.0.receive(room, ::rustix::net::RecvFlags::empty()).await?)
            }

            /// As [`recv_from`](Self::recv_from), without the sender.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub async fn recv(&self, into: &mut [u8]) -> ::std::io::Result<usize> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                self.0.receive(room, ::rustix::net::RecvFlags::empty()).await.map(|came| came.0)
            }

            /// As [`recv_from`](Self::recv_from), behind the bytes of a buffer, whose room is not cleared before.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub async fn recv_buf_from<B: ::bytes::BufMut>(
                &self,
                into: &mut B,
            ) -> ::std::io::Result<(usize, $address)> {
                // SAFETY: nobody writes anything uninitialised there.
                let room = unsafe { into.chunk_mut().as_uninit_slice_mut() };
                let came = self.0.receive(room, ::rustix::net::RecvFlags::empty()).await?;
                // SAFETY: so many were written.
                unsafe { into.advance_mut(came.0) };
                named(came)
            }

            /// As [`recv_buf_from`](Self::recv_buf_from), without the sender.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub async fn recv_buf<B: ::bytes::BufMut>(
                &self,
                into: &mut B,
            ) -> ::std::io::Result<usize> {
                // SAFETY: nobody writes anything uninitialised there.
                let room = unsafe { into.chunk_mut().as_uninit_slice_mut() };
                let came = self.0.receive(room, ::rustix::net::RecvFlags::empty()).await?;
                // SAFETY: so many were written.
                unsafe { into.advance_mut(came.0) };
                Ok(came.0)
            }

            /// As [`recv_from`](Self::recv_from), but the datagram stays for the next receive.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub async fn peek_from(&self, into: &mut [u8]) -> ::std::io::Result<(usize, $address)> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                named(self.0.receive(room, ::rustix::net::RecvFlags::PEEK).await?)
            }

            /// As [`peek_from`](Self::peek_from), without the sender.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub async fn peek(&self, into: &mut [u8]) -> ::std::io::Result<usize> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                self.0.receive(room, ::rustix::net::RecvFlags::PEEK).await.map(|came| came.0)
            }

            /// The sender of the next datagram, which stays.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub async fn peek_sender(&self) -> ::std::io::Result<$address> {
                self.peek_from(&mut []).await.map(|(_, from)| from)
            }

            /// Receives a datagram that is there, without a wait.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if there is none; as of [`recv_from`](Self::recv_from).
            pub fn try_recv_from(&self, into: &mut [u8]) -> ::std::io::Result<(usize, $address)> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                named(self.0.try_receive(room, ::rustix::net::RecvFlags::empty())?)
            }

            /// As [`try_recv_from`](Self::try_recv_from), without the sender.
            ///
            /// # Errors
            ///
            /// As `try_recv_from`.
            pub fn try_recv(&self, into: &mut [u8]) -> ::std::io::Result<usize> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                self.0.try_receive(room, ::rustix::net::RecvFlags::empty()).map(|came| came.0)
            }

            /// As [`try_recv_from`](Self::try_recv_from), behind the bytes of a buffer.
            ///
            /// # Errors
            ///
            /// As `try_recv_from`.
            pub fn try_recv_buf_from<B: ::bytes::BufMut>(
                &self,
                into: &mut B,
            ) -> ::std::io::Result<(usize, $address)> {
                let flags = ::rustix::net::RecvFlags::empty();
                named($crate::tokio::ready::into_buf(into, |room| self.0.try_receive(room, flags))?)
            }

            /// As [`try_recv`](Self::try_recv), behind the bytes of a buffer.
            ///
            /// # Errors
            ///
            /// As `try_recv_from`.
            pub fn try_recv_buf<B: ::bytes::BufMut>(
                &self,
                into: &mut B,
            ) -> ::std::io::Result<usize> {
                let flags = ::rustix::net::RecvFlags::empty();
                $crate::tokio::ready::into_buf(into, |room| self.0.try_receive(room, flags))
                    .map(|came| came.0)
            }

            /// As [`peek_from`](Self::peek_from), without a wait.
            ///
            /// # Errors
            ///
            /// As `try_recv_from`.
            pub fn try_peek_from(&self, into: &mut [u8]) -> ::std::io::Result<(usize, $address)> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                named(self.0.try_receive(room, ::rustix::net::RecvFlags::PEEK)?)
            }

            /// As [`peek`](Self::peek), without a wait.
            ///
            /// # Errors
            ///
            /// As `try_recv_from`.
            pub fn try_peek(&self, into: &mut [u8]) -> ::std::io::Result<usize> {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { $crate::tokio::call::as_uninit(into) };
                self.0.try_receive(room, ::rustix::net::RecvFlags::PEEK).map(|came| came.0)
            }

            /// As [`peek_sender`](Self::peek_sender), without a wait.
            ///
            /// # Errors
            ///
            /// As `try_recv_from`.
            pub fn try_peek_sender(&self) -> ::std::io::Result<$address> {
                self.try_peek_from(&mut []).map(|(_, from)| from)
            }

            /// As [`recv_from`](Self::recv_from), for code that polls. The last task that polled to receive is woken.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub fn poll_recv_from(
                &self,
                context: &mut ::std::task::Context<'_>,
                into: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<$address>> {
                let came = ::std::task::ready!(self.poll_came(context, into, false))?;
                ::std::task::Poll::Ready(named(came).map(|(_, from)| from))
            }

            /// As [`recv`](Self::recv), for code that polls.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub fn poll_recv(
                &self,
                context: &mut ::std::task::Context<'_>,
                into: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                self.poll_came(context, into, false).map_ok(drop)
            }

            /// As [`peek_from`](Self::peek_from), for code that polls.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub fn poll_peek_from(
                &self,
                context: &mut ::std::task::Context<'_>,
                into: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<$address>> {
                let came = ::std::task::ready!(self.poll_came(context, into, true))?;
                ::std::task::Poll::Ready(named(came).map(|(_, from)| from))
            }

            /// As [`peek_sender`](Self::peek_sender), for code that polls.
            ///
            /// # Errors
            ///
            /// As `recv_from`.
            pub fn poll_peek_sender(
                &self,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<$address>> {
                self.poll_peek_from(context, &mut ::tokio::io::ReadBuf::new(&mut []))
            }

            fn poll_came(
                &self,
                context: &mut ::std::task::Context<'_>,
                into: &mut ::tokio::io::ReadBuf<'_>,
                keeps: bool,
            ) -> ::std::task::Poll<::std::io::Result<$crate::tokio::datagrams::Came>> {
                use ::rustix::net::RecvFlags;
                let flags = if keeps { RecvFlags::PEEK } else { RecvFlags::empty() };
                // SAFETY: the kernel writes bytes there, and nobody makes any of them uninitialised.
                let room = unsafe { into.unfilled_mut() };
                let came = ::std::task::ready!(self.0.poll_receive(context, room, flags))?;
                // SAFETY: the kernel has written so many.
                unsafe { into.assume_init(came.0) };
                into.advance(came.0);
                ::std::task::Poll::Ready(Ok(came))
            }

            /// Sends a datagram to the address that the socket is connected to. The kernel copies the bytes. If you drop
            /// it, it has sent nothing.
            ///
            /// # Errors
            ///
            /// The kernel's error about the socket, the peer or the length.
            pub async fn send(&self, bytes: &[u8]) -> ::std::io::Result<usize> {
                self.0.send(bytes, None::<&$unaddressed>).await
            }

            /// As [`send`](Self::send), for code that polls. The last task that polled to send is woken.
            ///
            /// # Errors
            ///
            /// As `send`.
            pub fn poll_send(
                &self,
                context: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                self.0.poll_send(context, bytes, None::<&$unaddressed>)
            }

            /// As [`send`](Self::send), without a wait.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if there is no room; as of `send`.
            pub fn try_send(&self, bytes: &[u8]) -> ::std::io::Result<usize> {
                self.0.try_send(bytes, None::<&$unaddressed>)
            }

            /// Waits until there is a datagram, or an error. This asks the kernel each time. Receives nothing.
            ///
            /// # Errors
            ///
            /// While the socket has another receiver; the driver's.
            pub async fn readable(&self) -> ::std::io::Result<()> {
                self.ready(::tokio::io::Interest::READABLE).await.map(drop)
            }

            /// Waits until the socket has room for a datagram, or an error.
            ///
            /// # Errors
            ///
            /// The driver's.
            pub async fn writable(&self) -> ::std::io::Result<()> {
                self.ready(::tokio::io::Interest::WRITABLE).await.map(drop)
            }

            /// Waits until the socket is readable or writable, as asked for, and tells which.
            ///
            /// # Errors
            ///
            /// As [`readable`](Self::readable).
            pub async fn ready(
                &self,
                interest: ::tokio::io::Interest,
            ) -> ::std::io::Result<::tokio::io::Ready> {
                self.0.ready(interest).await
            }

            /// As [`readable`](Self::readable), for code that polls.
            ///
            /// # Errors
            ///
            /// As `readable`.
            pub fn poll_recv_ready(
                &self,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                self.0.poll_receive_ready(context)
            }

            /// As [`writable`](Self::writable), for code that polls.
            ///
            /// # Errors
            ///
            /// As `writable`.
            pub fn poll_send_ready(
                &self,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                self.0.poll_send_ready(context)
            }

            /// Makes a call of yours on the descriptor, which must not wait: it may say `WouldBlock`.
            ///
            /// # Errors
            ///
            /// While the socket has another receiver; what the call says.
            pub fn try_io<T>(
                &self,
                interest: ::tokio::io::Interest,
                call: impl FnOnce() -> ::std::io::Result<T>,
            ) -> ::std::io::Result<T> {
                $crate::tokio::ready::try_io(self.socket(), interest, &self.0.full, call)
            }

            /// The socket, for lending.
            pub fn socket(&self) -> &$crate::socket::Socket {
                &self.0.socket
            }

            /// The socket alone.
            pub fn into_socket(self) -> $crate::socket::Socket {
                self.0.socket
            }
        }

        /// What came, with the name of its sender.
        fn named(
            (bytes, from): $crate::tokio::datagrams::Came,
        ) -> ::std::io::Result<(usize, $address)> {
            Ok((bytes, $from(from)?))
        }

        impl ::std::os::fd::AsFd for $name {
            fn as_fd(&self) -> ::std::os::fd::BorrowedFd<'_> {
                self.0.socket.as_fd()
            }
        }
    };
}

pub(super) use datagrams;
