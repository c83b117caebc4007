"""A shop's session recommender (two GRU layers, next item of 500) whose item table is also its output layer; plain Adam.
FAULT at step 0: the table keeps nn.Embedding's own N(0, 1) although it is the softmax' weight too: with 160 normalised features per session the first logits have a deviation of some 12 and the loss begins far above ln 500 = 6.2.
Without Rangewatch: loss 39.5 at step 0 (6.24 with a deviation of 0.02), 19 at step 20, 7.7 at step 60; 2.2 at the end against 1.6 with the small deviation.
Cause: weight (initialisation). Step: from 0. Right: initialise the tied table with a small deviation (0.02 or 1/sqrt(d)). Wrong: data is bad, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 60], "place": r"catalogue(\.weight)?|.*catalogue.*|to_query.*|", "rank": None,
          "right": r"(?i)init|deviation|std|scale of the (embedding|table|weight)|tied", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

N_ITEMS, DIM, LONG = 500, 160, 12


class SessionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.catalogue = nn.Embedding(N_ITEMS, DIM)
        self.reader = nn.GRU(DIM, DIM, num_layers=2, batch_first=True)
        self.to_query = nn.LayerNorm(DIM)

    def forward(self, clicks):
        states, _ = self.reader(self.catalogue(clicks))
        return F.linear(self.to_query(states), self.catalogue.weight)


def sessions(table, rows=24):
    now = torch.randint(0, N_ITEMS, (rows,))
    walk = [now]
    for _ in range(LONG):
        pick = torch.randint(0, 3, (rows,))
        now = table[now, pick]
        walk.append(now)
    return torch.stack(walk, 1)


def main():
    torch.manual_seed(3703)
    torch.set_num_threads(1)
    table = torch.randint(0, N_ITEMS, (N_ITEMS, 3))
    net = SessionNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1.5e-3)
    handle = rangewatch.attach(net, optimizer)
    for step in range(200):
        s = sessions(table)
        logits = net(s[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), s[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == 199:
            print(f"{step:4d} loss {loss.item():.3f} logits' deviation {logits.std().item():.2f}", flush=True)
        handle.log(loss=loss.item())
    handle.detach()


if __name__ == "__main__":
    main()
