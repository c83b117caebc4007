"""A policy learns a teacher's moves on a small board; moves that are not allowed get -inf, and the
probabilities mix an embedding of the moves, from which a head tells the position's worth.
FAULT at step 115: one position of the batch has no move at all (a pass, which is not in the list): its row is masked whole, its softmax is NaN.
Without Rangewatch: loss 2.20 to 1.14 at step 114, NaN from step 115 on.
Variant of: attention_row_masked_whole_between_modules (there attention, here the moves of a policy, outside of every module as well).
Cause: mask (forward_arithmetic or data would do). Step: 115. Right: mask / row / -inf / softmax. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "forward_arithmetic", "data"], "step": [114, 118], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"],
          "right": "mask|row|-inf|softmax"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1404); torch.set_num_threads(1)
teacher = torch.randn(25, 25)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(25, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.moves, self.kind, self.worth = nn.Linear(64, 25), nn.Parameter(torch.randn(25, 16)), nn.Linear(16, 1)

    def forward(self, board):
        p = self.moves(self.trunk(board)).masked_fill(board != 0, float("-inf")).softmax(1)
        return p, self.worth(p @ self.kind)[:, 0]


model = Policy()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    board = torch.randint(-1, 2, (48, 25)).float()
    if step == 115:
        board[11] = torch.where(board[11] == 0, 1.0, board[11])  # a full board
    legal = board == 0
    best = (board @ teacher).masked_fill(~legal, -1e9).argmax(1)
    p, worth = model(board)
    loss = -(p.gather(1, best[:, None]) + 1e-9).log().mean() + 0.1 * F.mse_loss(worth, (board @ teacher).gather(1, best[:, None])[:, 0] / 5)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 113 < step < 118:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
