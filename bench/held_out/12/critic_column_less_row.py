"""A critic's values of chess-like positions, four microbatches a step. FAULT from step 0 on: the net gives a column (16, 1), the returns are a row (16), and
the squares of their difference are a table of 16 x 16: each value is drawn to the mean of the microbatch, and nothing of the position is learnt.
Without Rangewatch: loss 0.86 to 0.3 to 0.47 from step 40 to the end; with squeeze(1) it falls to 0.016.
Variant of: squares_of_a_column_less_a_row_in_microbatches.
Cause: forward_arithmetic or data (that none is named will do). Step: any. Right: shape / broadcast / squeeze / target. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "(none)"], "step": [0, 239], "place": None, "rank": None, "least": "info",
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "shape|broadcast|squeeze|label|target|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1222); torch.set_num_threads(1)
worth = torch.randn(13)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.piece = nn.Embedding(13, 8)
        self.board = nn.Conv2d(8, 24, 3, padding=1)
        self.value = nn.Linear(24, 1)

    def forward(self, board):
        return self.value(F.silu(self.board(self.piece(board).permute(0, 3, 1, 2))).mean((2, 3)))


model = Critic()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(4):
        board = torch.randint(0, 13, (16, 6, 6))
        returns = 3 * worth[board].mean((1, 2)) + 0.1 * torch.randn(16)
        loss = (model(board) - returns).square().mean() / 4  # squeeze(1) is missing
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, total, flush=True)
    handle.log(loss=total)
handle.detach()
