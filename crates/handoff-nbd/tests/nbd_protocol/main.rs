//! The protocol's machines against each other, against bytes written out, and against other people's programs.

mod codec;
mod hostile_clients;
mod hostile_servers;
mod negotiation;
mod other_programs;
mod pieces;
mod requests;
mod sending_again;
mod table;
mod transmission;
